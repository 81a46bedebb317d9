"""The command line."""

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
from daedl_bench import spec

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


def test_without_a_command_help_is_shown() -> None:
    assert "demo" in runner.invoke(app, []).output


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_written_ends_with_one_clear_line(
    tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("kept")
    result = runner.invoke(app, ["demo", "--quick", "--out", str(tmp_path / "file" / below)])
    assert result.exit_code == 1
    assert "cannot write into the folder" in result.stderr
    assert "choose another with --out" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_options_reach_the_demo_and_threads_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_senseless_numbers_are_refused(option: list[str]) -> None:
    assert runner.invoke(app, ["demo", *option]).exit_code == 2


def test_experiments_are_listed_and_misspelt_ones_suggested(tmp_path: Path) -> None:
    listed = runner.invoke(app, ["bench", "list", "--no-times"], env={"COLUMNS": "60"})
    assert listed.exit_code == 0
    assert all(name in listed.output for name in spec.catalogue().experiments)
    arguments = ["bench", "run", "mnist-odd", "--results", str(tmp_path), "--cache", str(tmp_path)]
    wrong = runner.invoke(app, arguments)
    assert wrong.exit_code == 1
    assert "did you mean 'mnist-ood'" in wrong.output
    wrong = runner.invoke(app, ["bench", "run", "mnist-ood", "--seeds", "some"])
    assert "expected numbers as in 0, 0-4 or 0,2,5" in wrong.output
    wrong = runner.invoke(app, ["bench", "run", "mnist-ood", "--seeds", "4-0"])
    assert "seeds are '4-0'; expected numbers" in wrong.output


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (["--methods", "deadl"], "did you mean 'daedl'"),
        (["--protocol", "quik"], "did you mean 'quick'"),
    ],
)
def test_a_misspelt_method_or_protocol_makes_no_folder(
    tmp_path: Path, option: list[str], text: str
) -> None:
    places = ["--results", str(tmp_path / "results"), "--cache", str(tmp_path / "cache")]
    wrong = runner.invoke(app, ["bench", "run", "mnist-ood", *option, *places])
    assert wrong.exit_code == 1
    assert text in wrong.output
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_run_is_listed_at_the_end(tmp_path: Path) -> None:
    """Without data nothing is measured; the error says which file to put where."""
    places = [
        "--results",
        str(tmp_path),
        "--cache",
        str(tmp_path),
        "--data",
        str(tmp_path / "data"),
    ]
    address = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    result = runner.invoke(app, ["bench", "run", "ablation-mnist", *places], env=address)
    assert result.exit_code == 1
    assert str(tmp_path / "data" / "MNIST" / "raw") in result.stderr.replace("\n", "")
    assert "failed: mnist" in result.stderr
    assert result.stdout.splitlines()[-1] == "nothing was measured"


def test_an_error_of_the_system_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), report_errors(OSError):
        raise PermissionError(13, "Permission denied", "some/folder")
    assert capsys.readouterr().err == "Error: Permission denied: some/folder\n"


@pytest.mark.parametrize("option", ["--cache", "--results"])
def test_a_cache_or_results_that_cannot_be_written_are_named(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("kept")
    places = {"--cache": tmp_path / "cache", "--results": tmp_path / "results"}
    places[option] = tmp_path / "file" / "below"
    arguments = [str(part) for pair in places.items() for part in pair]
    result = runner.invoke(app, ["bench", "run", "mnist-ood", *arguments])
    assert result.exit_code == 1
    assert f"cannot write into the folder {tmp_path / 'file' / 'below'}" in result.stderr
    assert (tmp_path / "file").read_text() == "kept"
