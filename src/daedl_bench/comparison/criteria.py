"""By what methods are compared, and who leads by it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from daedl_bench.comparison import titles
from daedl_bench.comparison.measured import Summary

SCORES = ("aleatoric", "epistemic")
# By known data: an unknown set that looks like it, one that doesn't, and its corruptions.
ASKED = {
    "mnist": ("kmnist", "fashion-mnist", "mnist-c"),
    "cifar10": ("cifar100", "svhn", "cifar10-c/3"),
}
Figures = tuple[Summary | None, ...]  # of a method by a criterion, one for each score


class Criterion(NamedTuple):
    """A column: its two lines of heading, what it shows, and by what it is multiplied.

    Without a score, detection is shown by both. `purpose` is what its leaders are good for; a cost has none.
    """

    heading: tuple[str, str]
    data: str
    task: str
    metric: str
    score: str = ""
    scale: float = 100
    digits: int = 2
    purpose: str = ""

    @property
    def scores(self) -> tuple[str, ...]:
        """The scores whose figures stand side by side."""
        return (self.score,) if self.score else SCORES

    @property
    def smaller_is_better(self) -> bool:
        """Whether the smallest figure is the best."""
        return self.metric in titles.SMALLER_IS_BETTER


def criteria(known: str) -> tuple[Criterion, ...]:
    """What is asked of every method: costs first, then what it gives."""
    names = dict(zip(("near", "far", "shift"), ASKED[known], strict=True))
    told = {"near": "near unknown images", "far": "far unknown images", "shift": "corrupted images"}
    cost = partial(Criterion, task="cost", scale=1)
    return (
        cost(("× softmax", "step"), "cost", metric="relative", score="step", digits=1),
        cost(("", "epochs"), known, metric="epochs", score="training", digits=0),
        cost(("fit, seconds", "afterwards"), known, metric="seconds", score="fit", digits=0),
        cost(("× softmax", "prediction"), "cost", metric="relative", score="prediction", digits=1),
        Criterion(
            ("", "accuracy ↑"), known, "classification", "accuracy", "labels", purpose="accuracy"
        ),
        Criterion(("", "ECE ↓"), known, "calibration", "ece", "probs", purpose="calibration"),
        *(
            Criterion(
                (f"{which}: {titles.data(name)}", "AUPR ↑"),
                name,
                "shift" if which == "shift" else "ood",
                "aupr",
                purpose=told[which],
            )
            for which, name in names.items()
        ),
    )


def better(figures: Figures) -> Summary:
    """The larger of the figures; where there is none, one of nothing."""
    return max(filter(None, figures), key=lambda each: each.mean, default=Summary(0.0, None, 0))


def leaders(
    found: Mapping[str, Sequence[Figures]], asked: Sequence[Criterion]
) -> list[set[tuple[str, int]]]:
    """The best by each criterion, as the method and the place of the score."""
    return [
        _best(
            {
                (label, number): summary
                for label, figures in found.items()
                for number, summary in enumerate(figures[place])
                if summary is not None
            },
            criterion,
        )
        for place, criterion in enumerate(asked)
    ]


def _best(present: Mapping[tuple[str, int], Summary], asked: Criterion) -> set[tuple[str, int]]:
    """The best, and those that differ from it by no more than twice its standard deviation.

    Not by their own deviation: a figure that varies much would lead where a better one that varies little
    doesn't. What everybody has is nobody's merit: of costs none is marked. A figure of one seed may be
    luck: it is left out where others have more.
    """
    if not present or not asked.purpose:
        return set()
    if repeated := {label: each for label, each in present.items() if each.deviation is not None}:
        present = repeated
    sign = -1 if asked.smaller_is_better else 1
    first = max(present.values(), key=lambda each: sign * each.mean)
    return {
        label
        for label, each in present.items()
        if abs(each.mean - first.mean) <= 2 * (first.deviation or 0)
    }


def answer(found: Mapping[str, Sequence[Figures]], asked: Sequence[Criterion]) -> str:
    """What the methods of a kind are best for; what more than half of them lead by tells nothing."""
    purposes: dict[str, list[str]] = {label: [] for label in found}
    for criterion, best in zip(asked, leaders(found, asked), strict=True):
        leading = {label for label, _ in best}
        if len(leading) <= max(1, len(found) // 2):
            for label in leading:
                purposes[label].append(criterion.purpose)
    names: dict[str, list[str]] = {}
    for label in sorted(purposes, key=lambda label: -len(purposes[label])):
        if purposes[label]:
            names.setdefault(_listed(purposes[label]), []).append(titles.method(label))
    told = [f"{_listed(methods)} for {purpose}" for purpose, methods in names.items()]
    return "; ".join(told) or "No method stands out"


def _listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
