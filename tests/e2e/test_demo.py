"""The demo as a whole, trained for two epochs."""

import re
import warnings
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from daedl import DensityWarning
from daedl.demo import run as demo
from daedl_bench import rows

SECTIONS = {"moons", "table", "density", "digits", "meanings", "protocol"}


class Page(HTMLParser):
    """What a page refers to, and the names of its sections."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.sections: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "poster", "action"):
                self.addresses.append(value or "")
            if name == "id" and tag == "section":
                self.sections.add(value or "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    text = StringIO()
    out = tmp_path_factory.mktemp("demo") / "a" / "b"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Two epochs may well leave features on which a density does too little or too much.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DensityWarning)
        path = demo.run(out, quick=True, console=Console(file=text, width=80))
    torch.set_num_threads(threads)
    return path, text.getvalue()


def test_the_report_needs_no_other_file(made: tuple[Path, str]) -> None:
    html = made[0].read_text()
    page = Page()
    page.feed(html)
    assert page.addresses
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not page.tags & {"script", "link", "iframe", "object"}
    assert not re.search(r"https?://|@import|url\(|file:", html)
    assert str(made[0].parent) not in html


def test_the_report_has_every_section(made: tuple[Path, str]) -> None:
    html = made[0].read_text()
    page = Page()
    page.feed(html)
    assert page.sections == SECTIONS
    # Moons wide and narrow, two figures, four rows of eight digits.
    assert len(page.addresses) == 4 + 4 * 8
    for text in ("Brier score", "density effect on 217 held-out", "865 / 217 / 361", "Seed 0"):
        assert text in html


def test_figures_and_rows_lie_beside_it(made: tuple[Path, str]) -> None:
    folder = made[0].parent
    names = {path.name for path in folder.iterdir()}
    pictures = {"two_moons", "two_moons_narrow", "density_scores", "reliability"}
    assert names == {"report.html", "rows.jsonl", *(f"{name}.png" for name in pictures)}
    found = rows.load(folder / "rows.jsonl")
    assert {row.method for row in found} == {"softmax", "edl", "daedl"}
    assert {row.experiment for row in found} == {"two-moons", "digits"}
    assert all(row.value is not None and row.threads == 1 for row in found)


def test_the_terminal_shows_one_table_and_where_the_report_is(made: tuple[Path, str]) -> None:
    path, text = made
    assert path.is_absolute()
    assert text.count("┏") == 1
    for line in ("digits · daedl", "accuracy ↑", "against digits 8, 9", "against uniform noise"):
        assert line in text
    assert text.rstrip().endswith(str(path))


def test_a_folder_that_cannot_be_made_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write into the folder .* choose another"):
        demo.run(tmp_path / "file" / "demo")
