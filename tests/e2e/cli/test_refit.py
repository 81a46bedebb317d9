"""`daedl refit` and `daedl info`: another density without training, and the description of a model."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import daedl
from daedl import storage
from daedl.cli import app
from daedl.methods.temperature import best_temperature
from daedl.networks import MLP, ConvNet


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A calibrated model trained by the command, its data, and held-out data."""
    folder, rng = tmp_path_factory.mktemp("refit"), np.random.default_rng(0)
    for name, number in (("train", 120), ("held_out", 200)):
        labels = np.arange(number) % 3
        pixels = rng.integers(0, 110, (number, 8, 8))
        for c in range(3):
            pixels[labels == c, 2 * c : 2 * c + 3] += 110
        names = ["low", "mid", "high"]
        np.savez(
            folder / f"{name}.npz",
            images=pixels.astype(np.uint8),
            labels=labels,
            class_names=names,
        )
    out = folder / "model.daedl"
    options = "--epochs", 2, "--batch-size", 16, "--set", "leave_one_out=true"
    result = call("train", "--data", folder / "train.npz", "--out", out, *options)
    assert result.exit_code == 0, result.output
    options = "--reject", 0.1, "--on", "epistemic"
    result = call("calibrate", out, "--data", folder / "held_out.npz", *options)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def model(folder, tmp_path):
    """A copy that a test may overwrite."""
    path = tmp_path / "model.daedl"
    path.write_bytes((folder / "model.daedl").read_bytes())
    return path


def refit(folder, model, *options):
    return call("refit", model, "--data", folder / "train.npz", *options)


class TestRefit:
    def test_only_the_density_changes(self, folder, model):
        before = daedl.Classifier.load(model)
        options = "--set", "covariance=tied", "--set", "normalizer=half-quantile"
        result = refit(folder, model, *options)
        assert result.exit_code == 0, result.output
        after = daedl.Classifier.load(model)
        assert (after.method.covariance, after.method.leave_one_out) == ("tied", True)
        assert after.fitted.normalizer.name == "half-quantile"
        assert after.trained_on == before.trained_on
        for name, weights in before.network.state_dict().items():
            assert torch.equal(weights, after.network.state_dict()[name])
        with np.load(folder / "train.npz") as arrays:
            images = torch.tensor(arrays["images"])[:, None]
            data = images, torch.tensor(arrays["labels"])
        before.method = after.method
        before.fit_post_hoc(data)
        assert torch.equal(before.predict(images).probs, after.predict(images).probs)

    def test_thresholds_are_removed_with_the_command_that_chooses_them(self, folder, model):
        result = refit(folder, model)
        assert f"daedl calibrate {model}" in result.stdout
        assert "--reject 0.1 --on epistemic" in result.stdout
        assert daedl.Classifier.load(model).thresholds is None

    def test_thresholds_are_chosen_again_for_the_same_target(self, folder, model, tmp_path):
        out = tmp_path / "new.daedl"
        data = "--held-out", folder / "held_out.npz"
        result = refit(folder, model, "--set", "covariance=diagonal", *data, "--out", out)
        assert result.exit_code == 0, result.output
        assert "density effect on 100 held-out samples" in result.stdout
        before, after = (daedl.Classifier.load(path).thresholds for path in (model, out))
        assert after.target == before.target == daedl.MaxRejectionRate(0.1)
        assert set(after.limits) == {"epistemic"}
        assert after.limits != before.limits

    def test_probabilities_are_calibrated_on_held_out_images_only(self, folder, model):
        result = refit(folder, model)
        assert "not calibrated" in result.stdout
        assert daedl.Classifier.load(model).fitted.temperature == 1
        # The model has no thresholds now, so that all images calibrate probabilities.
        result = refit(folder, model, "--held-out", folder / "held_out.npz")
        assert "density effect on 200 held-out samples" in result.stdout
        classifier = daedl.Classifier.load(model)
        outputs, targets = classifier.collect(folder / "held_out.npz")
        logits = classifier.fitted(outputs.features)[1][:, None] * outputs.logits
        expected = best_temperature(logits, targets, 0.5 / (len(targets) + 1))
        assert classifier.fitted.temperature == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--set", "spectral=none"], "daedl train"),
            (["--set", "covariance=tied", "--set", "kl_weight=1"], "kl_weight=1"),
            (["--set", "covarance=tied"], "did you mean 'covariance'"),
            (["--set", "covariance=round"], "round"),
            (["--held-out", "missing.npz"], "missing.npz"),
            (["--device", "cuda:99"], "--device"),
            (["--device", "gpu"], "--device"),
        ],
    )
    def test_errors_leave_the_model_unchanged(self, folder, model, options, message):
        before = model.read_bytes()
        result = refit(folder, model, *options)
        assert result.exit_code == 1
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
        assert model.read_bytes() == before
        assert list(model.parent.iterdir()) == [model]

    def test_methods_without_a_fit_are_rejected(self, folder, tmp_path):
        path = tmp_path / "softmax.daedl"
        daedl.Classifier(ConvNet(1, 3, 8, channels=2), "softmax").save(path)
        assert "fits nothing after training" in refit(folder, path).stderr

    def test_other_files_are_overwritten_only_with_force(self, folder, model, tmp_path):
        other = tmp_path / "other.daedl"
        other.write_text("content")
        assert "--force" in refit(folder, model, "--out", other).stderr
        assert other.read_text() == "content"
        assert refit(folder, model, "--out", other, "--force").exit_code == 0
        assert daedl.Classifier.load(other).fitted is not None


class TestInfo:
    def test_text(self, folder):
        result = call("info", folder / "model.daedl")
        assert result.exit_code == 0, result.output
        for text in (
            "ConvNet",
            "leave_one_out = True",
            "3: low, mid, high",
            "96 samples of train",
            "24 held out",
            "shrinkage = min",
            "name half-quantile, low",
            "at most 10.00% of new inputs",
            "96 samples",
        ):
            assert text in result.stdout

    def test_json(self, folder):
        described = json.loads(call("info", folder / "model.daedl", "--json").stdout)
        model = daedl.Classifier.load(folder / "model.daedl")
        weights = sum(each.numel() for each in model.network.parameters())
        assert described["network"]["weights"] == weights
        assert described["trained_on"]["samples"] == 96
        assert sum(described["trained_on"]["samples_per_class"]) == 96
        assert described["trained_on"]["epochs"] == 2
        assert described["thresholds"]["limits"] == model.thresholds.limits
        assert described["fit"]["normalizer"]["low"] == model.fitted.normalizer.low
        assert described["fit"]["shrinkage"]["max"] == float(model.fitted.density.amount.max())

    def test_candidates_of_the_covariance(self, folder, model):
        assert refit(folder, model, "--set", "covariance=auto").exit_code == 0
        fit = json.loads(call("info", model, "--json").stdout)["fit"]
        assert fit["candidates"] == daedl.Classifier.load(model).fitted.density.candidates
        best = max(fit["candidates"], key=fit["candidates"].get)
        assert best == fit["covariance"]
        assert f"{best} {fit['candidates'][best]:.4g}" in call("info", model).stdout

    def test_models_without_a_training_record(self, tmp_path):
        """Trained in Python, or written by an earlier version, which had no such entry."""
        path = tmp_path / "m.daedl"
        daedl.Classifier(MLP(4, 3), "softmax").save(path)
        tensors, description = storage.load(path)
        del description["trained_on"]
        storage.save(path, tensors, description)
        result = call("info", path)
        assert result.exit_code == 0, result.output
        assert "not recorded" in result.stdout
        assert "daedl calibrate" in result.stdout
        assert json.loads(call("info", path, "--json").stdout)["trained_on"] is None

    @pytest.mark.parametrize("method", ["temperature", "knn", "ddu", "ensemble", "postnet"])
    def test_other_fits(self, folder, tmp_path, method):
        path = tmp_path / "m.daedl"
        torch.manual_seed(0)
        model = daedl.Classifier(ConvNet(1, 3, 8, channels=8), method)
        with np.load(folder / "train.npz") as arrays:
            images = torch.tensor(arrays["images"])[:, None]
            model.fit_post_hoc((images, torch.tensor(arrays["labels"])))
        model.save(path)
        assert json.loads(call("info", path, "--json").stdout)["method"]["name"] == method
        assert call("info", path).exit_code == 0

    def test_names_are_printable(self, tmp_path):
        path = tmp_path / "m.daedl"
        daedl.Classifier(MLP(4, 2), "softmax", ["\x1b[31mred", "blue"]).save(path)
        assert "\x1b" not in call("info", path).stdout

    def test_missing_files(self, tmp_path):
        result = call("info", tmp_path / "missing.daedl")
        assert result.exit_code == 1
        assert "missing.daedl" in result.stderr

    def test_training_again_discards_the_record(self, folder, model):
        classifier = daedl.Classifier.load(model)
        with np.load(folder / "train.npz") as arrays:
            images = torch.tensor(arrays["images"])[:, None]
            data = images, torch.tensor(arrays["labels"])
        daedl.fit(classifier, data, max_epochs=1, accelerator="cpu", progress=False)
        assert classifier.trained_on is None
