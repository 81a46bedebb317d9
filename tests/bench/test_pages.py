"""The tables in the documentation are up to date."""

from pathlib import Path

import pytest

from daedl_bench.spec import catalogue
from daedl_bench.studies import pages
from daedl_bench.summary import Results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures():
    return Results.load(ROOT / "benchmarks" / "results", catalogue())


@pytest.mark.parametrize("page", pages.PAGES)
def test_tables_are_up_to_date(page, figures):
    text = (ROOT / page).read_text("utf-8")
    assert text == pages.written(text, figures), "run: python -m daedl_bench study pages"


def test_every_table_is_on_a_page():
    text = "".join((ROOT / page).read_text("utf-8") for page in pages.PAGES)
    for name in pages.TABLES:
        assert f"<!-- rows: {name} -->\n\n" in text, name


def test_outdated_figures_are_replaced(figures):
    page = "<!-- rows: wrapped -->\n\n| | accuracy |\n|---|---|\n| DAEDL | 12.34 |\n\nafter\n"
    written = pages.written(page, figures)
    assert "12.34" not in written
    assert written.startswith("<!-- rows: wrapped -->\n\n| | accuracy | calibration error |")
    assert written.endswith(" |\n\nafter\n")
