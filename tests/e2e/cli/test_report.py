"""`daedl evaluate --report`."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import daedl
from daedl.cli import app
from daedl.networks import ConvNet


def evaluate(folder: Path, *arguments: object) -> Result:
    known = "--id", folder / "a" / "test.npz"
    everything = "evaluate", folder / "model.daedl", *known, *arguments
    return CliRunner().invoke(app, [str(each) for each in everything])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model and three datasets, two of them with the same file name."""
    folder = tmp_path_factory.mktemp("report")
    torch.manual_seed(0)
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    for name, brightness in (("a/test", 1), ("b/test", 0.5), ("dark", 0)):
        (folder / name).parent.mkdir(exist_ok=True)
        pixels = (images * brightness).astype(np.uint8)
        np.savez(folder / f"{name}.npz", images=pixels, labels=np.arange(60) % 3)
    model = daedl.Classifier(ConvNet(1, 3, 8, channels=8), "softmax", ["ant", "bee", "<b>cat"])
    model.calibrate(
        (torch.tensor(images)[:, None], torch.arange(60) % 3), daedl.MaxRejectionRate(0.2)
    )
    model.save(folder / "model.daedl")
    return folder


def test_report_and_terminal_agree(folder: Path, tmp_path: Path) -> None:
    unknown = "--ood", folder / "b" / "test.npz", "--ood", folder / "dark.npz"
    report = tmp_path / "report.html"
    result = evaluate(folder, *unknown, "--report", report, "--format", "json")
    assert result.exit_code == 0, result.output
    assert str(report) in result.stderr
    html = report.read_text()
    accepted = {
        each["data"]: each["value"]
        for each in json.loads(result.stdout)
        if each["metric"] == "accepted"
    }
    assert len(accepted) == 3
    for share in accepted.values():
        assert f"<td>{100 * share:.1f}%</td>" in html
    # Equal file names are told apart by their folders, others are short.
    assert str(folder / "b" / "test.npz") in html
    assert str(folder / "dark.npz") not in html
    assert "&lt;b&gt;cat" in html


def test_share_accepted_on_the_terminal(folder: Path) -> None:
    result = evaluate(folder, "--ood", folder / "dark.npz")
    assert result.stdout.count("share accepted") == 2


def test_names_that_are_not_valid_text(folder: Path, tmp_path: Path) -> None:
    unreadable = tmp_path / os.fsdecode(b"\xff$\\ \x1b.npz")
    unreadable.write_bytes((folder / "dark.npz").read_bytes())
    report = tmp_path / "report.html"
    result = evaluate(folder, "--ood", unreadable, "--report", report)
    assert result.exit_code == 0, result.output
    assert "?$\\" in report.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--report", "model.daedl"], "the model itself"),
        (["--report", "missing/report.html"], "--report"),
        (["--report", "both", "--out", "both"], "two files"),
    ],
)
def test_wrong_outputs_are_rejected_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(folder)
    result = evaluate(folder, *arguments)
    assert result.exit_code == 1
    assert expected in result.stderr
    assert not (folder / "both").exists()
