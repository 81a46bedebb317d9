"""`python -m daedl_bench report`."""

from pathlib import Path

import pytest
from made import row
from typer.testing import CliRunner

from daedl_bench import results as rows
from daedl_bench.cli import app


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    measured = row("daedl", "kmnist", "ood", "epistemic", "aupr", 0.9991, protocol="mnist-paper")
    rows.save(tmp_path / "results" / "mnist-ood.jsonl", [measured])
    return tmp_path / "results"


def report(results: Path, out: Path) -> tuple[int, str]:
    arguments = ["--results", results, "--cache", out.parent / "cache", "--out", out]
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.output


def test_both_files_are_written_without_a_cache(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "report"
    status, output = report(results, out)
    assert status == 0
    assert str(out / "report.html") in output
    for name in ("report.md", "report.html"):
        text = (out / name).read_text()
        assert "99.91" in text
        assert "not in the folder --cache" in text


def test_missing_results_end_with_one_line(tmp_path: Path) -> None:
    status, output = report(tmp_path / "nowhere", tmp_path / "out")
    assert status == 1
    assert output.startswith("Error: no results in")
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_unusable_folder_ends_with_one_line(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    status, output = report(results, tmp_path / "file" / "out")
    assert status == 1
    assert output.startswith("Error: cannot write into the folder")
    assert (tmp_path / "file").read_text() == "kept"


def test_findings_become_a_section_without_html_and_comments(results: Path, tmp_path: Path) -> None:
    table = "| | one |\n|---|---|\n| a | 1 < 2 |"
    text = f"### Of `x`\n\nRun `a < b` & see <b>,\nnow.\n\n![p](a.png)\n\n<!-- rows: x -->\n\n{table}\n"
    (results / "findings.md").write_text(text)
    report(results, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<h3>Of <code>x</code></h3>" in page
    assert "<p>Run <code>a &lt; b</code> &amp; see &lt;b&gt;,\nnow.</p>" in page
    assert "<td>1 &lt; 2</td>" in page
    assert "<img" not in page  # it would be another file
    for name in ("report.md", "report.html"):
        assert "rows: x" not in (tmp_path / "report" / name).read_text()
