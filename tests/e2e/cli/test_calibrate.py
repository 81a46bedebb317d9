"""`daedl calibrate`: thresholds in the model, a curve beside it, and decisions in what is predicted."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import daedl
from daedl import figures
from daedl.cli import app
from daedl.networks import ConvNet


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def images(number, seed):
    """Images of 8 x 8 with one of three bright bands."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % 3
    pixels = rng.integers(0, 110, (number, 8, 8))
    for c in range(3):
        pixels[labels == c, 2 * c : 2 * c + 3] += 110
    return pixels.astype(np.uint8), labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained model, held-out images, and a known and an unknown image."""
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


def test_thresholds_curve_and_decisions(folder):
    out, plot = folder / "new.daedl", folder / "curve.png"
    result = call(
        *("calibrate", folder / "model.daedl", "--data", folder / "held_out.npz"),
        *("--reject", 0.1, "--out", out, "--plot", plot),
    )
    assert result.exit_code == 0, result.output
    assert "of 400 calibration images" in result.output
    assert "at most 10.00% are rejected" in result.output
    with Image.open(plot) as drawn:
        assert drawn.size[0] > 500
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


def test_in_place_with_a_limit_on_errors(folder, tmp_path):
    model = tmp_path / "model.daedl"
    model.write_bytes((folder / "model.daedl").read_bytes())
    result = call(
        *("calibrate", model, "--data", folder / "held_out.npz"),
        *("--error", 0.2, "--delta", 0.1, "--on", "epistemic"),
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "model.daedl.risk.png").is_file()
    found = daedl.Classifier.load(model).thresholds
    assert found.target == daedl.MaxErrorRate(0.2, 0.1)
    assert list(found.limits) == ["epistemic"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected one of them"),
        (["--reject", "0.1", "--error", "0.1"], "expected one of them"),
        (["--reject", "1.5"], "expected a share between 0 and 1"),
        (["--error", "0.0001"], "no threshold keeps errors"),
        (["--reject", "0.1", "--plot", "nowhere/curve.png"], "cannot write nowhere/curve.png"),
        (["--reject", "0.1", "--plot", "nowhere/curve.png"], "choose another with --plot"),
        (["--reject", "0.1", "--plot", "curve.jpg"], "expected a file that ends in .png"),
        (["--reject", "0.1", "--plot", "model.daedl"], "expected a file that ends in .png"),
    ],
)
def test_what_cannot_be_done_leaves_the_model_alone(folder, tmp_path, options, message):
    model = tmp_path / "model.daedl"
    model.write_bytes((folder / "model.daedl").read_bytes())
    result = call("calibrate", model, "--data", folder / "held_out.npz", *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert model.read_bytes() == (folder / "model.daedl").read_bytes()
    assert list(tmp_path.iterdir()) == [model]


def test_another_model_is_not_replaced_unless_asked_for(folder, tmp_path):
    other = tmp_path / "other.daedl"
    other.write_text("precious")
    command = ("calibrate", folder / "model.daedl", "--data", folder / "held_out.npz")
    result = call(*command, "--reject", 0.1, "--out", other)
    assert result.exit_code == 1
    assert "pass --force to replace it" in result.stderr
    assert other.read_text() == "precious"
    assert call(*command, "--reject", 0.1, "--out", other, "--force").exit_code == 0
    assert daedl.Classifier.load(other).thresholds is not None


def test_the_curve_shows_what_was_chosen(folder):
    model = daedl.Classifier.load(folder / "model.daedl")
    pixels, labels = images(400, 1)
    data = torch.tensor(pixels)[:, None] / 255, torch.tensor(labels)
    chosen = model.calibrate([data], daedl.MaxErrorRate(0.3))
    prediction = model.predict(data[0])
    (axes,) = figures.risk_coverage(prediction, data[1], chosen).axes
    by_label = {line.get_label(): line for line in axes.lines}
    assert {"by epistemic uncertainty", "by aleatoric uncertainty"} < set(by_label)
    assert by_label["at most 30.0% wrong"].get_ydata() == [0.3, 0.3]
    (star,) = [line for name, line in by_label.items() if name.startswith("chosen")]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (chosen.coverage, chosen.error)
    accepted = prediction.accept
    wrong = (prediction.labels != data[1])[accepted].double().mean()
    assert chosen.error == pytest.approx(float(wrong))
