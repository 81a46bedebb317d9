"""`daedl bench report`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daedl.cli import app

runner = CliRunner()
ROW = {
    "experiment": "mnist-ood",
    "method": "daedl",
    "data": "kmnist",
    "task": "ood",
    "score": "epistemic",
    "metric": "aupr",
    "value": 0.9991,
    "seed": 0,
    "seconds": 1.0,
    "torch": "2.13.0",
    "daedl": "0.1.0",
    "commit": "abc1234",
    "threads": 1,
    "spec": "",
    "protocol": "mnist-paper",
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "mnist-ood.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "speed.jsonl").write_text(json.dumps({"benchmark": "speed"}) + "\n")
    return folder


def report(results: Path, out: Path) -> tuple[int, str]:
    arguments = ["--results", results, "--cache", out.parent / "cache", "--out", out]
    result = runner.invoke(app, ["bench", "report", *map(str, arguments)])
    return result.exit_code, result.output


def test_both_forms_are_written_without_a_cache(results: Path, tmp_path: Path) -> None:
    status, output = report(results, tmp_path / "a" / "report")
    assert status == 0
    assert str(tmp_path / "a" / "report" / "report.html") in output
    for name in ("report.md", "report.html"):
        text = (tmp_path / "a" / "report" / name).read_text()
        assert "99.91" in text
        assert "No pictures" in text


def test_missing_results_end_with_one_clear_line(tmp_path: Path) -> None:
    status, output = report(tmp_path / "nowhere", tmp_path / "out")
    assert status == 1
    assert output.startswith("Error: no results in")
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_ends_with_one_clear_line(
    results: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    status, output = report(results, tmp_path / "file" / "out")
    assert status == 1
    assert output.startswith("Error: cannot write into the folder")
    assert (tmp_path / "file").read_text() == "kept"


def test_findings_beside_the_rows_become_a_section(results: Path, tmp_path: Path) -> None:
    (results / "findings.md").write_text(
        "### Brier\n\nIt is <worse>,\nas known images\nare tempered.\n"
    )
    report(results, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<h3>Brier</h3>" in page
    assert "<p>It is &lt;worse&gt;, as known images are tempered.</p>" in page
    assert "### Brier\n\nIt is <worse>,\nas" in (tmp_path / "report" / "report.md").read_text()
