"""The table of docs/methods.md is complete; test_pages.py compares the page with the methods."""

import re

from daedl.methods import METHODS
from daedl_bench import methods_page


def test_every_method_fills_its_line_and_links_to_its_section():
    lines = methods_page.table().splitlines()[2:]
    headings = re.findall("^## (.*)$", methods_page.sections(), re.MULTILINE)
    slugs = [
        "".join(c for c in heading.lower() if c.isalnum() or c in " -_").replace(" ", "-")
        for heading in headings
    ]
    for name, line in zip(METHODS, lines, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 9
        assert all(cells), line
        link = cells[0].removeprefix(f"[`{name}`](#").rstrip(")")
        assert slugs.count(link) == 1, line
