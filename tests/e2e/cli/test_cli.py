"""The command line: version, help, options and errors."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import daedl
from daedl.cli import app
from daedl.cli.common import report_errors
from daedl.demo import run as demo

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"daedl {daedl.__version__}"


def test_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["-m", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("daedl", run_name="__main__")
    assert capsys.readouterr().out.strip() == f"daedl {daedl.__version__}"


def test_help_is_shown_without_a_command() -> None:
    assert "demo" in runner.invoke(app, []).output


@pytest.mark.parametrize("below", ["", "deeper"])
def test_unwritable_folders_are_reported_without_traceback(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("kept")
    result = runner.invoke(app, ["demo", "--quick", "--out", str(tmp_path / "file" / below)])
    assert result.exit_code == 1
    assert "cannot write into the folder" in result.stderr
    assert "--out" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_demo_options_and_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def run(out: Path, seed: int, seeds: int, quick: bool) -> None:
        seen.extend([out, seed, seeds, quick, torch.get_num_threads()])

    monkeypatch.setattr(demo, "run", run)
    before = torch.get_num_threads()
    arguments = ["demo", "--out", str(tmp_path), "--seed", "7", "--seeds", "2", "--threads", "1"]
    assert runner.invoke(app, arguments).exit_code == 0
    assert seen == [tmp_path, 7, 2, False, 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("option", [["--seed", "-1"], ["--seeds", "1"], ["--threads", "0"]])
def test_invalid_numbers_are_rejected(option: list[str]) -> None:
    assert runner.invoke(app, ["demo", *option]).exit_code == 2


def test_system_errors_name_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), report_errors(OSError):
        raise PermissionError(13, "Permission denied", "some/folder")
    assert capsys.readouterr().err == "Error: Permission denied: some/folder\n"
