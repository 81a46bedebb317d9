"""The paper's tables beside what was measured: pure functions from figures to lines of cells."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from daedl_bench import paper
from daedl_bench.comparison import titles
from daedl_bench.comparison.measured import Measurements, Summary
from daedl_bench.paper import Column, PaperTable

BETTER, WORSE, EQUAL = "▲", "▼", "="
DASH, NOT_RUN, UNDEFINED = "–", "not run", "undefined"
# The paper rounds its standard deviations to 0.1: what reads 0.0 may have been this much.
ROUNDING = 0.05


@dataclass(frozen=True)
class Cell:
    """A figure times 100 as text; of ours with the mark and the signed difference to the paper's."""

    text: str
    mark: str = ""
    difference: str = ""


@dataclass(frozen=True)
class Line:
    """Figures of one origin; no cells at all where nothing was run."""

    label: str
    cells: tuple[Cell, ...]
    published: bool = False


@dataclass(frozen=True)
class Group:
    """A method's lines: the paper's first, where it has one, then ours, one a protocol."""

    method: str
    in_paper: bool
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Block:
    """The columns of a table that have the same known data set; each has two lines of heading."""

    known: str
    columns: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Comparison:
    """One of the paper's tables with ours beside it."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Tally:
    """How many published figures were measured under a protocol, and how they compare."""

    protocol: str
    published: int
    better: int
    equal: int
    worse: int

    @property
    def measured(self) -> int:
        """Figures with a mark."""
        return self.better + self.equal + self.worse


def compare(table: PaperTable, measured: Measurements) -> Comparison:
    """`table` with what was measured; a block for each known data set."""
    known = dict.fromkeys(column.id for column in table.columns)
    return Comparison(
        table.name, table.title, tuple(_block(table, each, measured) for each in known)
    )


def tally(tables: Iterable[PaperTable], measured: Measurements) -> list[Tally]:
    """For each protocol, run or not, the marks of every figure that the paper gives."""
    tables, found = list(tables), []
    for protocol in dict.fromkeys([*measured.catalogue.protocols, *measured.all_protocols]):
        known, marks = measured.known(protocol), []
        for table in tables:
            for place, column in enumerate(table.columns):
                if column.id != known:
                    continue
                for method, row in table.rows.items():
                    ours, theirs = _find(measured, protocol, method, column), row[place]
                    if theirs is not None:
                        marks.append("" if ours is None else mark(ours, theirs, column.metric))
        counts = (marks.count(each) for each in (BETTER, EQUAL, WORSE))
        found.append(Tally(protocol, len(marks), *counts))
    return found


def mark(ours: Summary, theirs: paper.Published, metric: str) -> str:
    """Whether ours is better, worse or equal; "" where it is undefined.

    Equal if the means differ by no more than both standard deviations together,

        |m − m'| ≤ s + s' + 0.05

    where 0.05 is what rounding may have taken from the paper's s'. A single seed has no deviation: the
    paper's, with the rounding, stands in for it.
    """
    if math.isnan(ours.mean):
        return ""
    spread = theirs.deviation + ROUNDING
    own = spread if ours.deviation is None else 100 * ours.deviation
    difference = 100 * ours.mean - theirs.mean
    if abs(difference) <= own + spread:
        return EQUAL
    larger_is_better = metric not in titles.SMALLER_IS_BETTER
    return BETTER if (difference > 0) == larger_is_better else WORSE


def text(summary: Summary, scale: float = 100, digits: int = 2, count: bool = False) -> str:
    """ "99.85 ± 0.03", without the deviation of a single seed; with `count` the seeds in brackets."""
    if math.isnan(summary.mean):
        return UNDEFINED
    shown = f"{scale * summary.mean:,.{digits}f}"
    if summary.deviation is not None:
        shown += f" ± {scale * summary.deviation:,.{digits}f}"
    return f"{shown} ({summary.n})" if count else shown


def same_count(summaries: Iterable[Summary | None]) -> int | None:
    """The number of seeds that all have, or None where they differ."""
    counts = {each.n for each in summaries if each is not None}
    return counts.pop() if len(counts) == 1 else None


def seeds(count: int) -> str:
    """ "1 seed", "5 seeds"."""
    return f"{count} seed{'' if count == 1 else 's'}"


def _block(table: PaperTable, known: str, measured: Measurements) -> Block:
    places = [place for place, column in enumerate(table.columns) if column.id == known]
    columns = [table.columns[place] for place in places]
    groups = []
    for method, row in table.rows.items():
        published = [row[place] for place in places]
        line = Line("published", tuple(map(_published, published)), published=True)
        ours = _ours(measured, method, known, columns, published)
        groups.append(Group(titles.method(method), True, (line, *ours)))
    for method in _others(table, known, columns, measured):
        ours = _ours(measured, method, known, columns, [None] * len(columns))
        run = tuple(line for line in ours if line.cells)
        groups.append(Group(titles.method(method), False, run))
    return Block(titles.data(known), tuple(map(_heading, columns)), tuple(groups))


def _others(
    table: PaperTable, known: str, columns: list[Column], measured: Measurements
) -> list[str]:
    """Measured methods that the table doesn't have; none for an ablation, whose rows are parts of one."""
    if "ablation" in table.name:
        return []
    listed = {measured.canonical(method) for method in table.rows}
    found: dict[str, None] = {}
    for protocol in measured.protocols(known):
        for method in measured.methods(protocol):
            if method not in listed and any(_find(measured, protocol, method, c) for c in columns):
                found[method] = None
    return list(found)


def _ours(
    measured: Measurements,
    method: str,
    known: str,
    columns: list[Column],
    published: list[paper.Published | None],
) -> tuple[Line, ...]:
    """A line for each protocol that has rows for the data; a single empty one if none has the method."""
    protocols = measured.protocols(known)
    lines = []
    for protocol in protocols:
        found = [_find(measured, protocol, method, column) for column in columns]
        name = f"ours, {titles.short(protocol, known)} protocol"
        if not any(found):
            lines.append(Line(name, ()))
            continue
        count = same_count(found)
        cells = tuple(
            _cell(
                summary,
                theirs,
                column,
                measured.was_run(protocol, method, _data(column), column.task),
                count is None,
            )
            for summary, theirs, column in zip(found, published, columns, strict=True)
        )
        lines.append(Line(name if count is None else f"{name}, {seeds(count)}", cells))
    return tuple(lines) if any(line.cells for line in lines) else (Line("ours", ()),)


def _cell(
    ours: Summary | None, theirs: paper.Published | None, column: Column, was_run: bool, count: bool
) -> Cell:
    if ours is None:  # a method that has no such score, or that wasn't asked
        return Cell(DASH if was_run else NOT_RUN)
    shown = text(ours, count=count)
    if theirs is None or math.isnan(ours.mean):
        return Cell(shown)
    difference = f"{100 * ours.mean - theirs.mean:+.2f}".replace("-", "−")
    return Cell(shown, mark(ours, theirs, column.metric), difference)


def _published(cell: paper.Published | None) -> Cell:
    return Cell(DASH if cell is None else f"{cell.mean:.2f} ± {cell.deviation:.1f}")


def _find(measured: Measurements, protocol: str, method: str, column: Column) -> Summary | None:
    return measured.summary(
        protocol, method, _data(column), column.task, column.score, column.metric
    )


def _data(column: Column) -> str:
    return column.ood or column.id


def _heading(column: Column) -> tuple[str, str]:
    """What is asked, and by which score and metric."""
    metric = titles.metric(column.metric)
    if column.ood is not None:
        return f"→ {titles.data(column.ood)}", f"{column.score} {metric}"
    if column.task == "misclassification":
        return "misclassification", f"{column.score} {metric}"
    return column.task, metric
