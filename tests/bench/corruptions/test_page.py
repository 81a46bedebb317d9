"""The page and the contact sheets."""

from pathlib import Path

import pytest

from daedl_bench.corruptions import FAMILIES, contact_sheet, markdown

DOCS = Path(__file__).parents[3] / "docs"


def test_page_is_up_to_date():
    page = (DOCS / "corruptions.md").read_text("utf-8")
    assert page == markdown(), "write docs/corruptions.md again, as its first lines say"


def test_page_lists_every_corruption_and_its_pictures_exist():
    for key, kind in FAMILIES.items():
        for name in kind.corruptions:
            assert f"| `{name}` |" in markdown()
        picture = f"corruptions_{key.replace('-', '_')}.png"
        assert f"({picture})" in markdown()
        assert (DOCS / picture).stat().st_size < 400_000


@pytest.mark.filterwarnings("ignore:the published photographs::")
@pytest.mark.parametrize(("family", "columns"), [("mnist-c", 2), ("cifar10-c", 6)])
def test_contact_sheet_shows_every_corruption(pictures, family, columns):
    figure = contact_sheet(pictures[family][:2], family)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(
        FAMILIES[family].corruptions
    )
    assert len(axes.get_xticklabels()) == columns
    assert axes.get_xticklabels()[0].get_text() == "clean"
    first = axes.images[0].get_array()[:5, :5, 0]
    assert (first == pictures[family][0, 0, :5, :5].numpy()).all()


def test_contact_sheet_needs_images(pictures):
    with pytest.raises(ValueError, match="images are empty; expected at least one"):
        contact_sheet(pictures["mnist-c"][:0], "mnist-c")
