"""README, guides and findings say what the rows say."""

import runpy
from pathlib import Path

import pytest

from daedl_bench.report import summary
from daedl_bench.spec import catalogue

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "pages.py"))


@pytest.fixture(scope="module")
def found():
    return summary.load(ROOT / "benchmarks" / "results", catalogue())


@pytest.mark.parametrize("path", SCRIPT["PAGES"], ids=lambda path: path.name)
def test_tables_are_those_of_the_rows(path, found):
    page = path.read_text("utf-8")
    assert SCRIPT["TABLE"].search(page)
    assert page == SCRIPT["written"](page, found), "run: python benchmarks/pages.py"


def test_every_table_has_a_page():
    pages = [path.read_text("utf-8") for path in SCRIPT["PAGES"]]
    for name in SCRIPT["TABLES"]:
        assert sum(f"<!-- rows: {name} -->\n\n|" in page for page in pages) == 1, name


def test_a_figure_that_fell_behind_is_mended(found):
    page = "<!-- rows: wrapped -->\n\n| | accuracy |\n|---|---|\n| DAEDL | 12.34 |\n\nafter\n"
    mended = SCRIPT["written"](page, found)
    assert "12.34" not in mended
    assert mended.startswith("<!-- rows: wrapped -->\n\n| | accuracy | calibration error |")
    assert mended.endswith(" |\n\nafter\n")
