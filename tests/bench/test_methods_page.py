"""The table of docs/methods.md is complete; test_pages.py compares the page with the methods."""

import re

import pytest

from daedl.methods import METHODS
from daedl_bench import methods_page

LINES = methods_page.table().splitlines()[2:]
HEADINGS = re.findall("^## (.*)$", methods_page.sections(), re.MULTILINE)


@pytest.mark.parametrize(("name", "line"), [*zip(METHODS, LINES, strict=True)])
def test_every_method_fills_its_line_and_links_to_its_section(name, line):
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    assert len(cells) == 9
    assert all(cells), line
    link = cells[0].removeprefix(f"[`{name}`](#").rstrip(")")
    slugs = [
        "".join(c for c in heading.lower() if c.isalnum() or c in " -_").replace(" ", "-")
        for heading in HEADINGS
    ]
    assert slugs.count(link) == 1
