"""The report's two forms: Markdown with pictures beside it, and one HTML file that holds them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from daedl.demo.report import inline, template
from daedl_bench import paper, two_moons
from daedl_bench.comparison import (
    choice,
    further,
    missing,
    protocols,
    titles,
)
from daedl_bench.comparison.choice import Choice
from daedl_bench.comparison.compare import Comparison, Tally, compare, tally
from daedl_bench.comparison.further import Sheet
from daedl_bench.comparison.measured import Measurements
from daedl_bench.comparison.missing import Gap
from daedl_bench.comparison.pictures import Gallery, Picture, of_choice
from daedl_bench.comparison.protocols import Run
from daedl_bench.spec import MISPAIRED


@dataclass(frozen=True)
class Content:
    """All that the report shows, as text and pictures.

    Attributes:
        aliases: pairs of labels that mean the same method.
        claims: what the figure of the two moons claims, and whether the rows bear it out.
        choices: what each method costs and gives, by known data set, with its picture.
        further: our own tables by protocol.
        findings: what people found out about the figures, in Markdown.
        paragraphs: the same; one that begins with ### is a heading, lines of cells are a table.
        stale: rows that were left out, as they are of other settings.
        mispaired: whether there are figures with densities of other images.
        moons_picture: the figure of the two moons.
    """

    tallies: list[Tally]
    runs: list[Run]
    aliases: list[tuple[str, str]]
    comparisons: list[Comparison]
    networks: Sequence[Gallery]
    corruptions: Sequence[Gallery]
    moons: Sheet | None
    claims: dict[str, bool]
    choices: list[tuple[Choice, Picture]]
    further: list[tuple[str, list[Sheet]]]
    gaps: list[Gap]
    findings: str
    paragraphs: list[str | list[list[str]]]
    stale: int
    mispaired: bool
    moons_picture: bytes | None


def gather(
    measured: Measurements,
    networks: Sequence[Gallery],
    corruptions: Sequence[Gallery],
    findings: str = "",
    moons_picture: bytes | None = None,
) -> Content:
    """The paper's tables beside what was measured, and everything else that is said."""
    tables = list(paper.tables().values())
    findings = re.sub(r"<!--.*?-->\s*", "", findings, flags=re.DOTALL).strip()  # comments
    return Content(
        tallies=tally(tables, measured),
        runs=protocols.runs(measured),
        aliases=_aliases(measured),
        comparisons=[compare(table, measured) for table in tables],
        networks=networks,
        corruptions=corruptions,
        moons=further.moons(measured),
        claims=_claims(measured),
        choices=[(each, of_choice(each)) for each in choice.choices(measured)],
        further=[(name, further.sheets(name, measured)) for name in measured.all_protocols],
        gaps=missing.gaps(tables, measured),
        findings=findings,
        paragraphs=[_paragraph(each) for each in findings.split("\n\n") if each.strip()],
        stale=measured.stale,
        mispaired=any(row.method.endswith(MISPAIRED) for row in measured.found),
        moons_picture=moons_picture,
    )


def _paragraph(text: str) -> str | list[list[str]]:
    """A paragraph of Markdown on one line; of a table its lines of cells, the heading first."""
    if not text.lstrip().startswith("|"):
        return " ".join(text.split())
    lines = [line.strip().strip("|").split("|") for line in text.strip().splitlines()]
    return [[cell.strip() for cell in line] for line in (lines[0], *lines[2:])]


def html(content: Content) -> str:
    """One file that needs no other."""
    return template("comparison.html.j2", "daedl_bench").render(content=content, inline=inline)


def markdown(content: Content) -> str:
    """Markdown that shows the pictures `<name>.png` in its folder."""
    return template("comparison.md.j2", "daedl_bench").render(content=content)


def _aliases(measured: Measurements) -> list[tuple[str, str]]:
    return [
        (titles.method(label), titles.method(measured.canonical(label)))
        for label in measured.catalogue.methods
        if measured.canonical(label) != label
    ]


def _claims(measured: Measurements) -> dict[str, bool]:
    whole = all(("daedl", data) in measured.moons for data in ("far", "test"))
    return two_moons.checks(measured.moons_rows) if whole else {}
