"""Which method should I take? What each costs and what it gives, from our own rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daedl.methods import METHODS, Method
from daedl_bench.comparison import titles
from daedl_bench.comparison.compare import DASH, NOT_RUN, same_count, text
from daedl_bench.comparison.criteria import (
    ASKED,
    Criterion,
    Figures,
    answer,
    better,
    criteria,
    leaders,
)
from daedl_bench.comparison.further import Section, Sheet
from daedl_bench.comparison.measured import Measurements, Summary

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


@dataclass(frozen=True)
class Choice:
    """What a practitioner asks, for one data set.

    Attributes:
        protocol: the name of the one that the figures are from.
        title: the same for people to read, with the data.
        answers: a sentence for each kind: what its methods are best for.
        costs: every method by kind: what it costs.
        gains: the same for what it gives, the best marked.
        leaders: the best by each criterion, of each kind and of all.
        detection: AUPR by the better score, by method and unknown set, the best method first, for a picture.
    """

    protocol: str
    title: str
    answers: tuple[str, ...]
    costs: Sheet
    gains: Sheet
    leaders: Sheet
    detection: Mapping[str, Mapping[str, Summary]]


def choices(measured: Measurements) -> list[Choice]:
    """One for each known data set, from the protocol with most methods, if these are enough."""
    found = []
    for known in ASKED:
        by_protocol = {each: _methods(each, known, measured) for each in measured.protocols(known)}
        protocol = max(by_protocol, key=lambda each: len(by_protocol[each]), default="")
        if len(methods := by_protocol.get(protocol, {})) >= FEWEST:
            found.append(_choice(protocol, known, methods, measured))
    return found


def kind(method: Method) -> str:
    """Which of the three kinds a method is of."""
    if method.passes > 1:
        return SEVERAL
    return POST_HOC if method.training_method() == METHODS["softmax"]() else OWN


def _choice(
    protocol: str, known: str, methods: Mapping[str, str], measured: Measurements
) -> Choice:
    asked = criteria(known)
    found = {
        label: [_find(protocol, label, criterion, measured) for criterion in asked]
        for label in methods
    }
    near = [each.data for each in asked].index(ASKED[known][0])
    order = sorted(found, key=lambda label: -better(found[label][near]).mean)
    best = leaders(found, asked)
    sections, kinds, answers = [], {}, []
    for each, short in SHORT.items():
        of_kind = {label: found[label] for label in order if methods[label] == each}
        if of_kind:
            kinds[short] = of_kind
            answers.append(f"{each}. {answer(of_kind, asked)}.")
            lines = tuple(
                _line(protocol, label, figures, asked, best, measured)
                for label, figures in of_kind.items()
            )
            sections.append(Section(each, lines))
    kinds["", "any"] = {label: found[label] for label in order}
    headings = (("", "extra data"), *(each.heading for each in asked))
    gains = 1 + sum(not each.purpose for each in asked)  # the first column that is no cost
    title = f"{titles.data(known)}, {titles.short(protocol, known)} protocol"
    names = [titles.data(name) for name in ASKED[known]]
    return Choice(
        protocol,
        title,
        tuple(answers),
        Sheet("What each costs", headings[:gains], _columns(sections, slice(gains))),
        Sheet("What each gives", headings[gains:], _columns(sections, slice(gains, None))),
        Sheet("Who leads", tuple(kinds), (Section("", _leading(list(kinds.values()), asked)),)),
        {
            label: {
                name: better(figures)
                for name, figures in zip(names, found[label][-3:], strict=True)
                if any(figures)
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


def _columns(sections: Sequence[Section], chosen: slice) -> tuple[Section, ...]:
    """The sections with some of their columns."""
    return tuple(
        Section(each.heading, tuple((label, cells[chosen]) for label, cells in each.lines))
        for each in sections
    )


def _extra_data(protocol: str, label: str, measured: Measurements) -> str:
    catalogue = measured.catalogue
    return catalogue.method(label, catalogue.protocols.get(protocol)).extra_data


def _find(protocol: str, label: str, asked: Criterion, measured: Measurements) -> Figures:
    """The figures of a method by every score that is asked for."""
    return tuple(
        measured.summary(protocol, label, asked.data, asked.task, score, asked.metric)
        for score in asked.scores
    )


def _line(
    protocol: str,
    label: str,
    found: Sequence[Figures],
    asked: Sequence[Criterion],
    best: Sequence[set[tuple[str, int]]],
    measured: Measurements,
) -> tuple[str, tuple[str, ...]]:
    gains = [
        each
        for figures, criterion in zip(found, asked, strict=True)
        if criterion.purpose
        for each in figures
    ]
    count = same_count(gains)
    cells = [_extra_data(protocol, label, measured)]
    for figures, criterion, leading in zip(found, asked, best, strict=True):
        shown = [
            _shown(summary, criterion, count is None) + (f" {BEST}" * ((label, number) in leading))
            for number, summary in enumerate(figures)
        ]
        was_run = measured.was_run(protocol, label, criterion.data, criterion.task)
        cells.append(" / ".join(shown) if was_run else NOT_RUN)
    seeds = "" if count is None else f" ({count})"
    return f"{titles.method(label)}{seeds}", tuple(cells)


def _shown(summary: Summary | None, asked: Criterion, counted: bool) -> str:
    if summary is None:
        return DASH
    if not asked.purpose:  # of a cost the mean will do
        return f"{asked.scale * summary.mean:,.{asked.digits}f}"
    return text(summary, asked.scale, asked.digits, counted)


def _leading(
    kinds: Sequence[Mapping[str, Sequence[Figures]]], asked: Sequence[Criterion]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """For each criterion that isn't a cost, the names of the best of each kind."""
    columns = [
        [
            ", ".join(titles.method(label) for label in found if label in dict(best)) or NOT_RUN
            for best in leaders(found, asked)
        ]
        for found in kinds
    ]
    return tuple(
        (", ".join(filter(None, criterion.heading)), cells)
        for criterion, cells in zip(asked, zip(*columns, strict=True), strict=True)
        if criterion.purpose
    )
