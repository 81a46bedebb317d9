"""The digits table: mean ± standard deviation over seeds, and the conclusion drawn from it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from rich.table import Table as RichTable

from daedl.demo.digits import TITLES as DATASETS
from daedl.evaluate import Measured
from daedl.figures import TITLES as METHODS

Figures = Mapping[str, Mapping[str, Sequence[Measured]]]  # of one seed, by method and dataset
CLEAR = 2.0  # standard deviations that a clear lead exceeds (chosen)


class Question(NamedTuple):
    """The comparison in a line of the table.

    Attributes:
        text: the question, as in "DAEDL leads in ...".
        name: the metric and its direction.
        data, task, metric: the figure.
        scores: the first one that a method provides is compared.
    """

    text: str
    name: str
    data: str
    task: str
    metric: str
    scores: tuple[str, ...]


PROBS, UNCERTAINTY = ("probs",), ("epistemic", "aleatoric")  # softmax has no epistemic score
QUESTIONS = (
    Question("predicting classes", "accuracy ↑", "test", "classification", "accuracy", ("labels",)),
    Question("probabilities", "Brier score ↓", "test", "classification", "brier", PROBS),
    Question("calibration", "ECE ↓", "test", "calibration", "ece", PROBS),
    *(
        Question(f"detecting {DATASETS[data]}", "AUROC ↑", data, "ood", "auroc", UNCERTAINTY)
        for data in ("unknown", "noise")
    ),
)


class Spread(NamedTuple):
    """Mean and standard deviation (with n − 1 in the denominator) over seeds, at least two."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of one value per seed."""
        return cls(fmean(values), stdev(values))

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.deviation:.1f}"


@dataclass(frozen=True)
class Line:
    """A line of the table.

    Attributes:
        spreads: by title of the method.
        leader: method with the best mean.
        leads: of the leader over each other method. Differences are computed per seed, because the
            methods share splits and initial weights.
    """

    question: Question
    spreads: Mapping[str, Spread]
    leader: str
    leads: Mapping[str, Spread]

    @property
    def verdict(self) -> str:
        """The leader, and over which methods its lead is clear."""
        clear = [name for name, each in self.leads.items() if each.mean > CLEAR * each.deviation]
        tied = [name for name in self.leads if name not in clear]
        if not clear:
            return "no method clearly leads"
        if not tied:
            return f"{self.leader} clearly leads"
        return f"{self.leader} clearly leads {_joined(clear)} but not {_joined(tied)}"

    def __str__(self) -> str:
        leads = _joined(f"{name} by {lead}" for name, lead in self.leads.items())
        return _sentence(f"{self.question.text}: {self.leader} leads {leads}; {self.verdict}")


def summarize(seeds: Sequence[Figures]) -> list[Line]:
    """One line per question from the figures of at least two seeds."""
    return [_line(question, seeds) for question in QUESTIONS]


def conclude(lines: Sequence[Line]) -> str:
    """One sentence: which method leads on which question, and whether the lead is clear."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        groups.setdefault(line.verdict, []).append(line.question.text)
    return _sentence("; ".join(f"{what} in {_joined(where)}" for what, where in groups.items()))


def rich_table(lines: Sequence[Line]) -> RichTable:
    """The table for a terminal."""
    table = RichTable("", "", title="Handwritten digits, figures times 100", title_justify="left")
    for method in lines[0].spreads:
        table.add_column(method, justify="right")
    for line in lines:
        table.add_row(line.question.text, line.question.name, *map(str, line.spreads.values()))
    return table


def _line(question: Question, seeds: Sequence[Figures]) -> Line:
    values = {
        METHODS.get(method, method): [_value(question, each[method]) for each in seeds]
        for method in seeds[0]
    }
    sign = -1 if question.name.endswith("↓") else 1
    leader = max(values, key=lambda name: sign * fmean(values[name]))
    leads = {
        name: Spread.of([sign * (a - b) for a, b in zip(values[leader], each, strict=True)])
        for name, each in values.items()
        if name != leader
    }
    return Line(question, {n: Spread.of(v) for n, v in values.items()}, leader, leads)


def _value(question: Question, datasets: Mapping[str, Sequence[Measured]]) -> float:
    found = {
        each.score: each.value
        for each in datasets[question.data]
        if (each.task, each.metric) == (question.task, question.metric)
    }
    return next(found[score] for score in question.scores if score in found)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _joined(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
