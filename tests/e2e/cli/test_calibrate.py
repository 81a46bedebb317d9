"""`daedl calibrate`: thresholds in the model file, the plot, and decisions in predictions."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import daedl
from daedl import figures, metrics
from daedl.cli import app
from daedl.data.read import read
from daedl.density.normalizer import MinMax
from daedl.networks import ConvNet


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def images(number, seed):
    """8 x 8 images with one of three bright bands."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % 3
    pixels = rng.integers(0, 110, (number, 8, 8))
    for c in range(3):
        pixels[labels == c, 2 * c : 2 * c + 3] += 110
    return pixels.astype(np.uint8), labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained model, held-out images, an in-distribution image and an OOD image."""
    folder = tmp_path_factory.mktemp("calibrate")
    pixels, labels = images(300, 0)
    torch.manual_seed(0)
    model = daedl.Classifier(ConvNet(1, 3, 8, channels=8), "daedl", ["low", "mid", "high"])
    data = torch.tensor(pixels)[:, None] / 255, torch.tensor(labels)
    daedl.fit(model, data, max_epochs=6, learning_rate=3e-3, accelerator="cpu", progress=False)
    model.save(folder / "model.daedl")
    held_out, held_out_labels = images(400, 1)
    np.savez(folder / "held_out.npz", images=held_out, labels=held_out_labels)
    Image.fromarray(images(3, 2)[0][0]).save(folder / "known.png")
    rng = np.random.default_rng(3)
    Image.fromarray(rng.integers(0, 2, (8, 8), dtype=np.uint8) * 255).save(folder / "unknown.png")
    return folder


def test_thresholds_plot_and_decisions(folder):
    out, plot = folder / "new.daedl", folder / "curve.png"
    result = call(
        *("calibrate", folder / "model.daedl", "--data", folder / "held_out.npz"),
        *("--reject", 0.1, "--out", out, "--plot", plot),
    )
    assert result.exit_code == 0, result.output
    assert "400 calibration samples" in result.output
    assert "at most 10.00%" in result.output
    with Image.open(plot) as image:
        assert image.width > 500
    model = daedl.Classifier.load(out)
    assert model.thresholds.target == daedl.MaxRejectionRate(0.1)
    assert 0.9 <= model.thresholds.coverage < 1
    assert daedl.Classifier.load(folder / "model.daedl").thresholds is None
    predicted = call(
        "predict", out, folder / "known.png", folder / "unknown.png", "--format", "json"
    )
    known, unknown = json.loads(predicted.stdout)
    assert (known["accept"], known["reason"]) == (True, "")
    assert not unknown["accept"]
    assert unknown["reason"] == "unlike the training data"
    table = call("predict", out, folder / "known.png", folder / "unknown.png").stdout
    assert "accept" in table
    assert table.count(" yes") == 1
    assert "unlike the training data" in table


def test_error_rate_in_place(folder, tmp_path):
    model = tmp_path / "model.daedl"
    model.write_bytes((folder / "model.daedl").read_bytes())
    result = call(
        *("calibrate", model, "--data", folder / "held_out.npz"),
        *("--error", 0.2, "--delta", 0.1, "--on", "epistemic"),
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "model.daedl.risk.png").is_file()
    thresholds = daedl.Classifier.load(model).thresholds
    assert thresholds.target == daedl.MaxErrorRate(0.2, 0.1)
    assert list(thresholds.limits) == ["epistemic"]


def test_images_without_evidence_do_not_prevent_a_guarantee(folder, tmp_path):
    """Most held-out images are below the range of the density score, so that their scores tie."""
    out = tmp_path / "model.daedl"
    model = daedl.Classifier.load(folder / "model.daedl")
    held_out = read(folder / "held_out.npz")
    density = model.predict(held_out).log_density
    model.fitted.normalizer = MinMax(float(density.quantile(0.7)), float(density.max()))
    assert (model.predict(held_out).density_score == 0).double().mean() > 0.65
    model.save(out)
    result = call("calibrate", out, "--data", folder / "held_out.npz", "--reject", 0.05)
    assert result.exit_code == 0, result.output
    calibrated = daedl.Classifier.load(out)
    assert 0.95 <= calibrated.thresholds.coverage < 1
    assert calibrated.predict(folder / "known.png").accept.item()
    unknown = calibrated.predict(folder / "unknown.png")
    assert (unknown.accept.item(), unknown.reason) == (False, ["unlike the training data"])
    result = call("export", out, tmp_path / "model.pt2")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "exactly one"),
        (["--reject", "0.1", "--error", "0.1"], "exactly one"),
        (["--reject", "0.1", "--width", "3"], "exactly one"),
        (["--width", "3"], "exactly one"),
        (["--reject", "1.5"], "rate is 1.5"),
        (["--error", "0.0001"], "lowest upper bound"),
        (["--reject", "0.1", "--plot", "nowhere/curve.png"], "cannot write nowhere/curve.png"),
        (["--reject", "0.1", "--plot", "nowhere/curve.png"], "--plot"),
        (["--reject", "0.1", "--plot", "curve.jpg"], ".png"),
        (["--reject", "0.1", "--plot", "model.daedl"], ".png"),
    ],
)
def test_errors_leave_the_model_unchanged(folder, tmp_path, options, message):
    model = tmp_path / "model.daedl"
    model.write_bytes((folder / "model.daedl").read_bytes())
    result = call("calibrate", model, "--data", folder / "held_out.npz", *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert model.read_bytes() == (folder / "model.daedl").read_bytes()
    assert list(tmp_path.iterdir()) == [model]


def test_another_model_is_overwritten_only_with_force(folder, tmp_path):
    other = tmp_path / "other.daedl"
    other.write_text("content")
    command = ("calibrate", folder / "model.daedl", "--data", folder / "held_out.npz")
    result = call(*command, "--reject", 0.1, "--out", other)
    assert result.exit_code == 1
    assert "--force" in result.stderr
    assert other.read_text() == "content"
    assert call(*command, "--reject", 0.1, "--out", other, "--force").exit_code == 0
    assert daedl.Classifier.load(other).thresholds is not None


def test_the_plot_shows_the_thresholds(folder):
    model = daedl.Classifier.load(folder / "model.daedl")
    pixels, labels = images(400, 1)
    data = torch.tensor(pixels)[:, None] / 255, torch.tensor(labels)
    thresholds = model.calibrate([data], daedl.MaxErrorRate(0.3))
    prediction = model.predict(data[0])
    (axes,) = figures.risk_coverage(prediction, data[1], thresholds).axes
    by_label = {line.get_label(): line for line in axes.lines}
    assert {"by epistemic uncertainty", "by aleatoric uncertainty"} < set(by_label)
    assert by_label["at most 30.0% wrong"].get_ydata() == [0.3, 0.3]
    (star,) = [line for name, line in by_label.items() if name.startswith("chosen")]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (thresholds.coverage, thresholds.error)
    accepted = prediction.accept
    wrong = (prediction.labels != data[1])[accepted].double().mean()
    assert thresholds.error == pytest.approx(float(wrong))


def test_a_registered_metric_is_in_every_output(folder, monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))

    @metrics.metric("misclassification", "constant", "my metric", lower_is_better=True)
    def constant(uncertainty, labels, targets):
        return 0.4321

    arguments = "evaluate", folder / "model.daedl", "--id", folder / "held_out.npz"
    table = call(*arguments)
    assert table.exit_code == 0, table.output
    (row,) = [line for line in table.stdout.splitlines() if "my metric ↓" in line]
    assert row.count("0.4321") == 3  # aleatoric, epistemic, density
    records = json.loads(call(*arguments, "--format", "json").stdout)
    assert [each["value"] for each in records if each["metric"] == "constant"] == [0.4321] * 3


def test_text_from_files_is_inert(folder, tmp_path):
    """Control characters don't reach the terminal, nor formulas a spreadsheet."""
    names = ["=1+1", "+\x1b[2J", "@\x9b31m"]
    model = tmp_path / "model.daedl"
    daedl.Classifier(ConvNet(1, 3, 8, channels=2), "softmax", names).save(model)
    image = tmp_path / "\x1b[31mred.png"
    image.write_bytes((folder / "known.png").read_bytes())
    missing = tmp_path / "\x1b[2Jmissing.png"
    for form in ("table", "csv", "json"):
        result = call("predict", model, image, missing, "--format", form)
        assert not {"\x1b", "\x9b"} & set(result.output)
        assert "[31mred.png" in result.stdout
        assert "[2Jmissing.png" in result.stderr
    (line,) = csv.DictReader(call("predict", model, image, "--format", "csv").stdout.splitlines())
    assert line["class_name"].startswith(("'=", "'+", "'@"))
    assert float(line["probability"]) > 0


@pytest.mark.parametrize("command", ["info", "predict", "calibrate"])
def test_missing_models_are_reported_with_what_to_do(folder, tmp_path, command):
    data = {"info": [], "predict": [folder], "calibrate": ["--data", folder, "--reject", 0.05]}
    result = call(command, tmp_path / "none.daedl", *data[command])
    assert result.exit_code == 1
    assert "no model file" in " ".join(result.output.split())
