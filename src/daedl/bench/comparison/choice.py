"""Which method should I take? What each costs and what it gives, from our own rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from daedl.bench.comparison import titles
from daedl.bench.comparison.compare import DASH, same_count, text
from daedl.bench.comparison.further import Section, Sheet
from daedl.bench.comparison.measured import Measurements, Summary
from daedl.methods import METHODS, Method

POST_HOC = "Reads an ordinary softmax network: nothing is trained again"
OWN = "Trained in its own way, one pass at prediction"
SEVERAL = "Several passes at prediction"
SHORT = {
    POST_HOC: ("nothing is", "trained again"),
    OWN: ("its own training,", "one pass"),
    SEVERAL: ("several", "passes"),
}
BEST = "★"
# Fewer methods than this leave nothing to choose between (chosen).
FEWEST = 4
# By known data: an unknown set that looks like it, one that doesn't, and its corruptions.
ASKED = {
    "mnist": ("kmnist", "fashion-mnist", "mnist-c"),
    "cifar10": ("cifar100", "svhn", "cifar10-c/3"),
}


class Criterion(NamedTuple):
    """A column: its two lines of heading, what it shows, and by what it is multiplied."""

    heading: tuple[str, str]
    data: str
    task: str
    metric: str
    score: str = ""
    scale: float = 100
    digits: int = 2

    @property
    def smaller_is_better(self) -> bool:
        """Whether the smallest figure is the best."""
        return self.metric in titles.SMALLER_IS_BETTER or self.metric == "relative"


@dataclass(frozen=True)
class Choice:
    """What a practitioner asks, for one protocol.

    Attributes:
        protocol: its name.
        title: the same for people to read, with the data.
        costs: every method by kind: what it costs and gives, the best marked.
        leaders: the best by each criterion, of each kind and of all.
        detection: AUPR by method and unknown set, the best method first, for a picture.
    """

    protocol: str
    title: str
    costs: Sheet
    leaders: Sheet
    detection: Mapping[str, Mapping[str, Summary]]


def choices(measured: Measurements) -> list[Choice]:
    """One for each protocol that has rows of enough methods."""
    return [
        _choice(protocol, known, methods, measured)
        for protocol in measured.all_protocols
        if (known := measured.known(protocol)) in ASKED
        and len(methods := _methods(protocol, known, measured)) >= FEWEST
    ]


def criteria(known: str) -> tuple[Criterion, ...]:
    """What is asked of every method: costs first, then what it gives."""
    near, far, shift = ASKED[known]
    return (
        Criterion(("× softmax", "training step"), "cost", "cost", "relative", "step", 1, 1),
        Criterion(("× softmax", "prediction"), "cost", "cost", "relative", "prediction", 1, 1),
        Criterion(("", "accuracy ↑"), known, "classification", "accuracy", "labels"),
        Criterion(("", "ECE ↓"), known, "calibration", "ece", "probs"),
        Criterion((f"near: {titles.data(near)}", "AUPR ↑"), near, "ood", "aupr"),
        Criterion((f"far: {titles.data(far)}", "AUPR ↑"), far, "ood", "aupr"),
        Criterion((f"shift: {titles.data(shift)}", "AUPR ↑"), shift, "shift", "aupr"),
    )


def kind(method: Method) -> str:
    """Which of the three kinds a method is of."""
    if method.passes > 1:
        return SEVERAL
    return POST_HOC if method.trained_as() == METHODS["softmax"]() else OWN


def _choice(
    protocol: str, known: str, methods: Mapping[str, str], measured: Measurements
) -> Choice:
    asked = criteria(known)
    found = {label: [_find(protocol, label, c, measured) for c in asked] for label in methods}
    near = [each.data for each in asked].index(ASKED[known][0])
    order = sorted(found, key=lambda label: -_mean(found[label][near]))
    best = [
        _best({label: found[label][place] for label in found}, criterion)
        for place, criterion in enumerate(asked)
    ]
    sections, kinds = [], {}
    for each, short in SHORT.items():
        labels = [label for label in order if methods[label] == each]
        if labels:
            kinds[short] = {label: found[label] for label in labels}
            sections.append(
                Section(each, tuple(_line(label, found[label], asked, best) for label in labels))
            )
    kinds["", "any"] = {label: found[label] for label in order}
    headings = tuple(each.heading for each in asked)
    title = f"{titles.data(known)}, {titles.short(protocol, known)} protocol"
    names = [titles.data(name) for name in ASKED[known]]
    return Choice(
        protocol,
        title,
        Sheet("Costs and gains", headings, tuple(sections)),
        Sheet("Who leads", tuple(kinds), (Section("", _leading(list(kinds.values()), asked)),)),
        {
            label: {
                name: summary
                for name, summary in zip(names, found[label][-3:], strict=True)
                if summary is not None
            }
            for label in order
        },
    )


def _methods(protocol: str, known: str, measured: Measurements) -> dict[str, str]:
    """Labels of the catalogue's methods with an accuracy under `protocol`, and their kinds.

    Parts of an ablation are left out: nobody would choose one.
    """
    catalogue = measured.catalogue
    chosen = catalogue.protocols.get(protocol)
    compared = {
        label
        for each in catalogue.experiments.values()
        if each.ood and "ablation" not in each.name
        for label in each.methods
    }
    return {
        label: kind(catalogue.method(label, chosen))
        for label in measured.methods(protocol)
        if label in compared
        and measured.summary(protocol, label, known, "classification", "labels", "accuracy")
    }


def _find(protocol: str, label: str, asked: Criterion, measured: Measurements) -> Summary | None:
    """The figure; of detection by the epistemic score, or by the aleatoric one where there is no other."""
    scores = (asked.score,) if asked.score else ("epistemic", "aleatoric")
    found = (
        measured.summary(protocol, label, asked.data, asked.task, score, asked.metric)
        for score in scores
    )
    return next((each for each in found if each is not None), None)


def _mean(summary: Summary | None) -> float:
    return 0.0 if summary is None else summary.mean


def _best(found: Mapping[str, Summary | None], asked: Criterion) -> set[str]:
    """The best, and those that differ from it by no more than both standard deviations together.

    What everybody has is nobody's merit: of costs none is marked. A figure of one seed may be luck: it is
    left out where others have more.
    """
    present = {label: each for label, each in found.items() if each is not None}
    if not present or asked.task == "cost":
        return set()
    if repeated := {label: each for label, each in present.items() if each.deviation is not None}:
        present = repeated
    sign = -1 if asked.smaller_is_better else 1
    first = max(present.values(), key=lambda each: sign * each.mean)
    return {
        label
        for label, each in present.items()
        if abs(each.mean - first.mean) <= (each.deviation or 0) + (first.deviation or 0)
    }


def _line(
    label: str,
    found: Sequence[Summary | None],
    asked: Sequence[Criterion],
    best: Sequence[set[str]],
) -> tuple[str, tuple[str, ...]]:
    cells = []
    gains = [each for each, criterion in zip(found, asked, strict=True) if criterion.task != "cost"]
    count = same_count(gains)
    for summary, criterion, leading in zip(found, asked, best, strict=True):
        if summary is None:
            cells.append(DASH)
            continue
        counted = count is None and criterion.task != "cost"
        shown = text(summary, criterion.scale, criterion.digits, counted)
        cells.append(f"{shown} {BEST}" if label in leading else shown)
    seeds = "" if count is None else f" ({count})"
    return f"{titles.method(label)}{seeds}", tuple(cells)


def _leading(
    kinds: Sequence[Mapping[str, Sequence[Summary | None]]], asked: Sequence[Criterion]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """For each criterion that isn't a cost, the names of the best of each kind."""
    lines = []
    for place, criterion in enumerate(asked):
        if criterion.task == "cost":
            continue
        cells = []
        for found in kinds:
            best = _best({label: each[place] for label, each in found.items()}, criterion)
            cells.append(
                ", ".join(titles.method(label) for label in found if label in best) or DASH
            )
        lines.append((", ".join(filter(None, criterion.heading)), tuple(cells)))
    return tuple(lines)
