"""The whole demo, trained for two epochs."""

import json
import re
import warnings
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from daedl import DensityWarning
from daedl.cli.common import using_threads
from daedl.demo import run as demo

SECTIONS = {"moons", "cubic", "table", "density", "digits", "meanings", "protocol"}
MAPS = {"two_moons", "two_moons_narrow", "cubic", "cubic_narrow"}
PICTURES = MAPS | {"density_scores", "reliability"}


class Page(HTMLParser):
    """URLs, tags and section ids of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.tags: set[str] = set()
        self.sections: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "poster", "action"):
                self.urls.append(value or "")
            if name == "id" and tag == "section":
                self.sections.add(value or "")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Path of the report, and the terminal output."""
    text = StringIO()
    out = tmp_path_factory.mktemp("demo") / "a" / "b"
    with warnings.catch_warnings(), using_threads(1):
        # After two epochs the density may be saturated.
        warnings.simplefilter("ignore", DensityWarning)
        path = demo.run(out, seed=5, seeds=2, quick=True, console=Console(file=text, width=80))
    return path, text.getvalue()


def test_report_is_self_contained(written: tuple[Path, str]) -> None:
    html = written[0].read_text()
    page = Page(html)
    assert page.urls
    assert all(url.startswith("data:image/png;base64,") for url in page.urls)
    assert not page.tags & {"script", "link", "iframe", "object"}
    assert not re.search(r"https?://|@import|url\(|file:", html)
    assert str(written[0].parent) not in html


def test_report_has_every_section_and_picture(written: tuple[Path, str]) -> None:
    html = written[0].read_text()
    page = Page(html)
    assert page.sections == SECTIONS
    assert len(page.urls) == len(PICTURES) + 4 * 8  # four galleries of eight images
    for text in ("--quick", "Brier score", "density effect on 217 held-out", "Seeds 5, 6"):
        assert text in html


def test_terminal_and_report_show_the_same_table_and_conclusion(written: tuple[Path, str]) -> None:
    path, text = written
    html = path.read_text()
    cells = re.findall(r"\d+\.\d ± \d+\.\d", text.partition("┏")[2])
    assert len(cells) == 5 * 3
    assert all(cell in html for cell in cells)
    conclusion = " ".join(text.partition("└")[2].partition("\n")[2].split("Done in")[0].split())
    assert "clearly leads in" in conclusion
    assert conclusion in html


def test_terminal_ends_with_the_path(written: tuple[Path, str]) -> None:
    path, text = written
    assert path.is_absolute()
    assert text.rstrip().endswith(str(path))


def test_figures_and_values_are_beside_the_report(written: tuple[Path, str]) -> None:
    folder = written[0].parent
    names = {path.name for path in folder.iterdir()}
    assert names == {"report.html", "figures.json", *(f"{name}.png" for name in PICTURES)}
    values = json.loads((folder / "figures.json").read_text())
    assert {each["seed"] for each in values["two moons"]} == {5}
    assert {each["seed"] for each in values["digits"]} == {5, 6}
    assert {each["method"] for each in values["digits"]} == {"softmax", "edl", "daedl"}


def test_unwritable_folder_is_rejected_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="--out"):
        demo.run(tmp_path / "file" / "demo")


def test_one_seed_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        demo.run(tmp_path, seeds=1)
