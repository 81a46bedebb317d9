"""Figures beyond the paper's tables: classification, detection, cost, and the two moons."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from daedl_bench.comparison import titles
from daedl_bench.comparison.compare import DASH, NOT_RUN, same_count, text
from daedl_bench.comparison.measured import Measurements, Summary
from daedl_bench.datasets import corrupted_sets


class Asked(NamedTuple):
    """A column: its two lines of heading, the row that it shows, and by what it is multiplied."""

    heading: tuple[str, str]
    task: str
    score: str
    metric: str
    scale: float = 100
    digits: int = 2


@dataclass(frozen=True)
class Section:
    """Lines under a heading, which may be empty: a label and a cell for each column."""

    heading: str
    lines: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Sheet:
    """A table of our own figures."""

    title: str
    columns: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


SCORES = ("aleatoric", "epistemic", "density")
CLASSIFICATION = (
    Asked(("", "accuracy ↑"), "classification", "labels", "accuracy"),
    Asked(("", "Brier score ↓"), "classification", "probs", "brier"),
    Asked(("not × 100", "NLL ↓"), "classification", "probs", "nll", 1, 4),
    Asked(("", "ECE ↓"), "calibration", "probs", "ece"),
    *(Asked(("misclass. AUPR ↑", each), "misclassification", each, "aupr") for each in SCORES),
    *(Asked(("AURC × 1000 ↓", each), "misclassification", each, "aurc", 1000) for each in SCORES),
)
COST = (
    Asked(("training", "seconds"), "cost", "training", "seconds", 1, 0),
    Asked(("training", "epochs"), "cost", "training", "epochs", 1, 1),
    Asked(("fit afterwards", "seconds"), "cost", "fit", "seconds", 1, 1),
)


def sheets(protocol: str, measured: Measurements) -> list[Sheet]:
    """Everything that was measured under `protocol` but for single corruptions."""
    known = measured.known(protocol)
    methods = measured.methods(protocol)
    made = [
        Sheet(title, _headings(asked), (_section("", known, asked, protocol, methods, measured),))
        for title, asked in (
            (f"Classification and calibration on {titles.data(known)}", CLASSIFICATION),
            ("Cost", COST),
        )
    ]
    asked = _detection("ood")
    sections = tuple(
        _section(titles.data(data), data, _detection(task), protocol, methods, measured)
        for data, task in _detected(protocol, measured)
    )
    if sections:
        title = f"Detection: {titles.data(known)} against"
        made.insert(1, Sheet(title, _headings(asked), sections))
    return made


def moons(measured: Measurements) -> Sheet | None:
    """Mean uncertainty on the two moons; None if they weren't run."""
    if not measured.moons:
        return None
    methods = dict.fromkeys(method for method, _ in measured.moons)
    sets = tuple(dict.fromkeys(data for _, data in measured.moons))
    lines = []
    for method in methods:
        found = [measured.moons.get((method, data)) for data in sets]
        lines.append(_line(method, found, [(1.0, 3)] * len(sets), run=True))
    return Sheet("Two moons", tuple(("", data) for data in sets), (Section("", tuple(lines)),))


def is_average(data: str) -> bool:
    """Whether `data` is a set of its own or a mean over corruptions, and not a single corruption."""
    return "/" not in data or data in corrupted_sets(data.partition("/")[0])


def _detection(task: str) -> tuple[Asked, ...]:
    return tuple(
        Asked((titles.metric(metric), score), task, score, metric)
        for metric in ("aupr", "auroc", "fpr95")
        for score in SCORES
    )


def _detected(protocol: str, measured: Measurements) -> list[tuple[str, str]]:
    """Sets that the known one was told from, with the task's name, in the rows' order."""
    found = dict.fromkeys(
        (key.data, key.task)
        for key in measured.summaries
        if key.protocol == protocol and key.task in ("ood", "shift") and is_average(key.data)
    )
    return sorted(found, key=lambda pair: pair[1])


def _headings(asked: Sequence[Asked]) -> tuple[tuple[str, str], ...]:
    return tuple(each.heading for each in asked)


def _section(
    heading: str,
    data: str,
    asked: Sequence[Asked],
    protocol: str,
    methods: Sequence[str],
    measured: Measurements,
) -> Section:
    lines = []
    for method in methods:
        found = [
            measured.summary(protocol, method, data, each.task, each.score, each.metric)
            for each in asked
        ]
        lines.append(
            _line(method, found, [(each.scale, each.digits) for each in asked], any(found))
        )
    return Section(heading, tuple(lines))


def _line(
    method: str, found: Sequence[Summary | None], shown: Sequence[tuple[float, int]], run: bool
) -> tuple[str, tuple[str, ...]]:
    """The method with its seeds, and its cells; no cells if nothing was run."""
    count = same_count(found)
    label = titles.method(method)
    if not run:
        return f"{label}: {NOT_RUN}", tuple(DASH for _ in found)
    cells = tuple(
        DASH if summary is None else text(summary, scale, digits, count is None)
        for summary, (scale, digits) in zip(found, shown, strict=True)
    )
    return label if count is None else f"{label} ({count})", cells
