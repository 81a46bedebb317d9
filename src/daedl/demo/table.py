"""The digits table: mean ± standard deviation over seeds, and the conclusion drawn from it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from rich.table import Table as RichTable

from daedl.demo.digits import TITLES as DATASETS
from daedl.evaluate import Measured
from daedl.figures import TITLES

Figures = Mapping[str, Mapping[str, Sequence[Measured]]]  # of one seed, by method and dataset
DASH = "–"
# A lead is clear if its mean over seeds exceeds this many of its standard deviations (chosen).
CLEAR = 2.0


class Line(NamedTuple):
    """A line of the table: its name, its dataset, and the figure that it shows."""

    name: str
    data: str
    task: str
    score: str
    metric: str


LINES = (
    Line("accuracy ↑", "test", "classification", "labels", "accuracy"),
    Line("Brier score ↓", "test", "classification", "probs", "brier"),
    Line("ECE ↓", "test", "calibration", "probs", "ece"),
    Line("misclassification AUPR ↑", "test", "misclassification", "aleatoric", "aupr"),
    *(
        Line(f"{metric.upper()}, {score} ↑", data, "ood", score, metric)
        for data in ("unknown", "noise")
        for metric in ("aupr", "auroc")
        for score in ("aleatoric", "epistemic")
    ),
)
# The lines that the conclusion is drawn from, and the question that each answers. Detection is compared
# by epistemic uncertainty, or by aleatoric uncertainty for a method that has no other.
QUESTIONS = {
    "predicting the class": LINES[0],
    "predicting probabilities": LINES[1],
    "calibration": LINES[2],
    f"detecting {DATASETS['unknown']}": LINES[7],
    f"detecting {DATASETS['noise']}": LINES[11],
}


class Spread(NamedTuple):
    """Mean and standard deviation (with n − 1 in the denominator) over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of one value per seed; NaN if the figure is undefined for some seed."""
        if not all(map(math.isfinite, values)):
            return cls(math.nan, math.nan)
        return cls(fmean(values), stdev(values))

    def __str__(self) -> str:
        return (
            DASH if math.isnan(self.mean) else f"{100 * self.mean:.1f} ± {100 * self.deviation:.1f}"
        )


@dataclass(frozen=True)
class Verdict:
    """The answer to a question: the best method, and its lead over each of the others.

    Leads are paired: the difference is computed per seed, because methods share splits and initial
    weights.
    """

    question: str
    leader: str
    leads: Mapping[str, Spread]

    @property
    def behind(self) -> tuple[str, ...]:
        """Methods over which the lead is clear."""
        return tuple(
            name for name, lead in self.leads.items() if lead.mean > CLEAR * lead.deviation
        )

    @property
    def tied(self) -> tuple[str, ...]:
        """Methods over which the lead is not clear."""
        return tuple(name for name in self.leads if name not in self.behind)

    def __str__(self) -> str:
        leads = (
            f"{_title(name)} by {lead}{' (no clear difference)' if name in self.tied else ''}"
            for name, lead in self.leads.items()
        )
        return f"{self.question}: {_title(self.leader)} leads {_joined(leads)}"


@dataclass(frozen=True)
class Table:
    """The table as text, figures times 100: one column per method, sections by dataset."""

    methods: tuple[str, ...]
    sections: Mapping[str, Sequence[tuple[str, Sequence[str]]]]

    def rich(self) -> RichTable:
        """The table for a terminal."""
        table = RichTable(title="Handwritten digits, figures times 100", title_justify="left")
        table.add_column("")
        for method in self.methods:
            table.add_column(method, justify="right")
        for title, lines in self.sections.items():
            table.add_section()
            table.add_row(f"[bold]{title}[/bold]")
            for name, cells in lines:
                table.add_row(f"  {name}", *cells)
        return table


def tabulate(seeds: Sequence[Figures]) -> Table:
    """The table of `seeds`, at least two."""
    methods = tuple(seeds[0])
    sections: dict[str, list[tuple[str, list[str]]]] = {title: [] for title in DATASETS.values()}
    for line in LINES:
        spreads = {name: Spread.of(each) for name, each in _values(seeds, line).items()}
        cells = [str(spreads.get(method, DASH)) for method in methods]
        sections[DATASETS[line.data]].append((line.name, cells))
    return Table(methods, sections)


def verdicts(seeds: Sequence[Figures]) -> list[Verdict]:
    """The answer of `seeds`, at least two, to each of `QUESTIONS`."""
    return [_verdict(question, seeds, line) for question, line in QUESTIONS.items()]


def conclude(answers: Sequence[Verdict]) -> str:
    """One sentence: where a method leads, and whether its lead is clear."""
    clear: dict[str, list[str]] = {}
    parts, unclear = [], []
    for each in answers:
        if not each.tied:
            clear.setdefault(each.leader, []).append(each.question)
        elif each.behind:
            over, but = (_joined(map(_title, names)) for names in (each.behind, each.tied))
            leader = _title(each.leader)
            parts.append(
                f"{leader} leads in {each.question}, clearly over {over} but not over {but}"
            )
        else:
            unclear.append(each.question)
    parts = [
        *(f"{_title(name)} clearly leads in {_joined(asked)}" for name, asked in clear.items()),
        *parts,
        *([f"there is no clear difference in {_joined(unclear)}"] if unclear else []),
    ]
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _verdict(question: str, seeds: Sequence[Figures], line: Line) -> Verdict:
    values = _values(seeds, line)
    if line.score == "epistemic":
        values = _values(seeds, line._replace(score="aleatoric")) | values
    sign = -1 if line.name.endswith("↓") else 1
    leader = max(values, key=lambda name: sign * fmean(values[name]))
    leads = {
        name: Spread.of(
            [sign * (best - other) for best, other in zip(values[leader], each, strict=True)]
        )
        for name, each in values.items()
        if name != leader
    }
    return Verdict(question, leader, leads)


def _values(seeds: Sequence[Figures], line: Line) -> dict[str, list[float]]:
    """One value per seed for each method that has the figure of `line`."""
    found: dict[str, list[float]] = {}
    for figures in seeds:
        for method, datasets in figures.items():
            for each in datasets[line.data]:
                if (each.task, each.score, each.metric) == line[2:]:
                    found.setdefault(method, []).append(each.value)
    return found


def _title(method: str) -> str:
    return TITLES.get(method, method)


def _joined(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
