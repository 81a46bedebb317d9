"""docs/methods.md is rendered from the methods, and complete."""

from pathlib import Path

import pytest

from daedl.methods import METHODS
from daedl_bench.methods_page import markdown

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_page_is_up_to_date():
    page = PAGE.read_text("utf-8")
    assert page == markdown(), "run: python -m daedl_bench study pages"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_fills_its_line_of_the_table(name):
    line = next(each for each in markdown_lines() if each.startswith(f"| [`{name}`]"))
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    assert len(cells) == 9
    assert all(cells), line
    link = cells[0].partition("(#")[2].rstrip(")")
    headings = [each.removeprefix("## ") for each in markdown_lines() if each.startswith("## ")]
    slugs = [
        "".join(c for c in heading.lower() if c.isalnum() or c in " -_").replace(" ", "-")
        for heading in headings
    ]
    assert slugs.count(link) == 1


def markdown_lines():
    return PAGE.read_text("utf-8").splitlines()


def test_methods_that_are_left_out_are_listed():
    text = PAGE.read_text("utf-8")
    assert all(f"**{name}**" in text for name in ("DUQ", "DUE"))
