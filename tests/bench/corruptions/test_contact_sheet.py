"""The contact sheets."""

from pathlib import Path

import pytest

from daedl_bench.corruptions import FAMILIES, contact_sheet

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_shows_every_sheet(family):
    picture = f"corruptions_{family.replace('-', '_')}.png"
    assert f"({picture})" in (DOCS / "corruptions.md").read_text("utf-8")
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
