"""Which method should I take? What each method costs and how well it does, from the rows alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from daedl_bench.report import names, specs
from daedl_bench.report.summary import Results
from daedl_bench.report.tables import (
    DASH,
    NOT_RUN,
    Column,
    markdown,
    seed_counts,
    select,
    texts,
)

BEST = "★"
FEWEST = 4  # methods to choose from (chosen)
# By in-distribution dataset: a similar OOD set, a dissimilar one, and corruptions.
OOD = {
    "mnist": ("kmnist", "fashion-mnist", "mnist-c"),
    "cifar10": ("cifar100", "svhn", "cifar10-c/3"),
}
KINDS = {
    specs.POST_HOC: "no retraining",
    specs.OWN: "own training, one pass",
    specs.SEVERAL: "several passes",
}


@dataclass(frozen=True)
class Recommendation:
    """The methods for one dataset.

    Attributes:
        answers: per kind of method, what its best methods are best for.
        tables: in Markdown, by title.
        detection: the larger AUPR of the two scores, one row per method, one column per OOD set.
    """

    protocol: str
    title: str
    answers: list[str]
    tables: dict[str, str]
    detection: DataFrame


def recommendations(results: Results) -> list[Recommendation]:
    """One per dataset, from the protocol with the most methods, if there are enough to choose from."""
    found = []
    for known in OOD:
        kinds = {
            protocol: _kinds(protocol, known, results)
            for protocol in results.protocols
            if results.known(protocol) == known
        }
        protocol = max(kinds, key=lambda each: len(kinds[each]), default="")
        if protocol and len(kinds[protocol]) >= FEWEST:
            found.append(_recommendation(protocol, known, kinds[protocol], results))
    return found


def tied(found: DataFrame) -> Series:
    """Mark results within 2 standard deviations of the best in their column as tied with it.

    The deviation is the best result's own: with a result's own deviation an unstable method would be
    marked where a better and more stable one is not. Results of a single seed are not considered where
    others have more.
    """
    repeated = found["std"].notna()
    considered = repeated | ~repeated.groupby(found["heading"]).transform("any")
    sign = np.where(found["metric"].isin(names.SMALLER_IS_BETTER), -1, 1)
    value = (sign * found["mean"]).where(considered)
    best = value.groupby(found["heading"]).transform("max")
    allowed = found["std"].fillna(0).where(value == best).groupby(found["heading"])
    result: Series = (best - value) <= 2 * allowed.transform("first")
    return result


def _kinds(protocol: str, known: str, results: Results) -> dict[str, str]:
    """Methods with an accuracy under `protocol`, and the kind of each."""
    compared = specs.compared_methods(results.catalogue)
    chosen = results.catalogue.protocols.get(protocol)
    return {
        label: specs.kind(results.catalogue.method(label, chosen))
        for label in results.methods(protocol)
        if label in compared
        and results.get(protocol, label, known, "classification", "labels", "accuracy")
    }


def _costs(known: str) -> list[Column]:
    return [
        Column("step, × softmax", "cost", "cost", "step", "relative", 1, 1),
        Column("epochs", known, "cost", "training", "epochs", 1, 0),
        Column("fit afterwards, seconds", known, "cost", "fit", "seconds", 1, 0),
        Column("prediction, × softmax", "cost", "cost", "prediction", "relative", 1, 1),
    ]


def _quality(known: str) -> dict[Column, str]:
    """Columns, and what methods with the best result are best for; columns of both scores are joined."""
    accuracy = Column("accuracy ↑", known, "classification", "labels", "accuracy")
    ece = Column("ECE ↓", known, "calibration", "probs", "ece")
    words = ("near", "near OOD images"), ("far", "far OOD images"), ("shift", "corrupted images")
    return {accuracy: "accuracy", ece: "calibration"} | {
        Column(
            f"{which}: {names.dataset(data)}, AUPR ↑",
            data,
            "shift" if which == "shift" else "ood",
            score,
            "aupr",
        ): purpose
        for data, (which, purpose) in zip(OOD[known], words, strict=True)
        for score in ("aleatoric", "epistemic")
    }


def _recommendation(
    protocol: str, known: str, kinds: dict[str, str], results: Results
) -> Recommendation:
    columns, costs = _quality(known), _costs(known)
    purposes = {column.heading: purpose for column, purpose in columns.items()}
    found = select(columns, results, protocol)
    found = found[found["method"].isin(list(kinds))].reset_index(drop=True)
    found["text"] = texts(found)
    found.loc[tied(found), "text"] += f" {BEST}"
    larger = found.pivot_table(index="method", columns="data", values="mean", aggfunc="max")
    detection = larger.reindex(index=list(kinds), columns=list(OOD[known]))
    near = detection[OOD[known][0]].fillna(0)
    order = list(near.sort_values(ascending=False, kind="stable").index)
    counts = seed_counts(found)
    labels = {m: names.method(m) + (f" ({counts[m]})" if counts.get(m, 0) else "") for m in order}
    by_kind = {
        kind: {method: labels[method] for method in order if kinds[method] == kind}
        for kind in KINDS
        if kind in kinds.values()
    }
    quality = {m: _quality_cells(m, columns, found, results, protocol) for m in order}
    cost = {m: _cost_cells(m, costs, results, protocol) for m in order}
    return Recommendation(
        protocol,
        f"{names.dataset(known)}, {names.protocol(protocol, known)}",
        [f"{kind}. {_answer(found, list(of), purposes)}." for kind, of in by_kind.items()],
        {
            "best methods": _leaders(found, by_kind, order, list(purposes)),
            "results": _sections(list(purposes), by_kind, quality),
            "costs": _sections(["extra data", *(each.heading for each in costs)], by_kind, cost),
        },
        detection.loc[order].dropna(axis="columns", how="all").rename(columns=names.dataset),
    )


def _quality_cells(
    method: str, columns: Iterable[Column], found: DataFrame, results: Results, protocol: str
) -> list[str]:
    """One cell per heading: the results of its scores, the best of the column marked."""
    of_method = found[found["method"] == method]
    keys = zip(of_method["heading"], of_method["score"], strict=True)
    shown = dict(zip(keys, of_method["text"], strict=True))
    cells: dict[str, list[str]] = {}
    for each in columns:
        cells.setdefault(each.heading, []).append(shown.get((each.heading, each.score), DASH))
    ran = {each.heading: results.has(protocol, method, each.data, each.task) for each in columns}
    return [" / ".join(each) if ran[heading] else NOT_RUN for heading, each in cells.items()]


def _cost_cells(
    method: str, columns: Sequence[Column], results: Results, protocol: str
) -> list[str]:
    """The extra data that the method needs, and means of its costs, which are never marked as best."""
    chosen = results.catalogue.protocols.get(protocol)
    cells = [results.catalogue.method(method, chosen).extra_data]
    for each in columns:
        summary = results.get(protocol, method, each.data, each.task, each.score, each.metric)
        ran = results.has(protocol, method, each.data, each.task)
        absent = DASH if ran else NOT_RUN
        cells.append(absent if summary is None else f"{summary.mean:,.{each.digits}f}")
    return cells


def _sections(
    headings: list[str], by_kind: dict[str, dict[str, str]], cells: dict[str, list[str]]
) -> str:
    """A table with one line per method, sorted into kinds."""
    lines: list[list[str]] = []
    for kind, labels in by_kind.items():
        lines.append([f"**{kind}**", *[""] * len(headings)])
        lines += [[label, *cells[method]] for method, label in labels.items()]
    return markdown(["method (seeds)", *headings], lines)


def _leading(found: DataFrame, methods: Sequence[str]) -> dict[str, list[str]]:
    """By heading, which of `methods` have the best result among them or are tied with it."""
    of_kind = found[found["method"].isin(methods)]
    best = of_kind[tied(of_kind)]
    headings = pd.unique(found["heading"])
    return {
        heading: [m for m in methods if m in set(best["method"][best["heading"] == heading])]
        for heading in headings
    }


def _leaders(
    found: DataFrame,
    by_kind: dict[str, dict[str, str]],
    order: list[str],
    headings: list[str],
) -> str:
    """The best methods per heading, of each kind and of all."""
    groups = {KINDS[kind]: list(labels) for kind, labels in by_kind.items()} | {"any": order}
    leading = {short: _leading(found, methods) for short, methods in groups.items()}
    lines = [
        [
            heading,
            *(
                ", ".join(map(names.method, each.get(heading, []))) or NOT_RUN
                for each in leading.values()
            ),
        ]
        for heading in headings
    ]
    return markdown(["by", *groups], lines, left=1 + len(groups))


def _answer(found: DataFrame, methods: list[str], purposes: dict[str, str]) -> str:
    """What the methods of a kind are best for; a result that most of them share says nothing."""
    best_for: dict[str, list[str]] = {method: [] for method in methods}
    for heading, leading in _leading(found, methods).items():
        if len(leading) <= max(1, len(methods) // 2):
            for method in leading:
                best_for[method].append(purposes[heading])
    grouped: dict[str, list[str]] = {}
    for method in sorted(methods, key=lambda each: -len(best_for[each])):
        if best_for[method]:
            grouped.setdefault(_listed(best_for[method]), []).append(names.method(method))
    words = [f"{_listed(titles)} for {purpose}" for purpose, titles in grouped.items()]
    return "; ".join(words) or "No method stands out"


def _listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
