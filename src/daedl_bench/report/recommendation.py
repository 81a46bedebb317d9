"""Which method should I take? Costs and results of each method, from the rows alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pandas import DataFrame, Series

from daedl import figures
from daedl.methods import METHODS, Method
from daedl_bench import names
from daedl_bench.names import NOT_RUN, markdown
from daedl_bench.report import plots
from daedl_bench.report.pictures import SCORES, Picture
from daedl_bench.report.tables import Column, by_method, method_lines, sectioned
from daedl_bench.spec import Catalogue
from daedl_bench.summary import Results

# Kinds of methods, with a short name for the heading of a column.
KINDS = {
    "Applied to an ordinary softmax network: no retraining": "no retraining",
    "Own training, one pass at prediction": "own training, one pass",
    "Several passes at prediction": "several passes",
}
BEST = "★"
FEWEST = 4  # methods to choose from (chosen)
# By in-distribution dataset: a similar OOD set, a dissimilar one, and corruptions.
OOD = {
    "mnist": ("kmnist", "fashion-mnist", "mnist-c"),
    "cifar10": ("cifar100", "svhn", "cifar10-c/3"),
}


@dataclass(frozen=True)
class Recommendation:
    """Recommended methods for one dataset: strengths of the best of each kind, and tables by title."""

    title: str
    answers: list[str]
    tables: dict[str, str]
    picture: Picture


def recommendations(results: Results) -> list[Recommendation]:
    """One per dataset, from the protocol with the most methods, if there are enough to choose from."""
    found = []
    for known in OOD:
        kinds = {
            p: _kinds(p, known, results) for p in results.protocols if results.known(p) == known
        }
        protocol = max(kinds, key=lambda each: len(kinds[each]), default="")
        if protocol and len(kinds[protocol]) >= FEWEST:
            found.append(_recommendation(protocol, known, kinds[protocol], results))
    return found


def tied(found: DataFrame) -> Series:
    """Mark results within 2 standard deviations of the best for their purpose as tied with it.

    The deviation is the best result's: with a result's own deviation an unstable method would be marked
    where a better and more stable one is not. Results of a single seed are not considered where others
    have more.
    """
    purpose, repeated = found["purpose"], found["std"].notna()
    considered = repeated | ~repeated.groupby(purpose).transform("any")
    sign = np.where(found["metric"].isin(names.LOWER_IS_BETTER), -1, 1)
    value = (sign * found["mean"]).where(considered)
    best = value.groupby(purpose).transform("max")
    allowed = 2 * found["std"].fillna(0).where(value == best).groupby(purpose).transform("first")
    result: Series = best - value <= allowed
    return result


def kind(method: Method) -> str:
    """The kind of a method, one of `KINDS`."""
    post_hoc, own, several = KINDS
    if method.passes > 1:
        return several
    return post_hoc if method.training_method() == METHODS["softmax"]() else own


def _compared_methods(catalogue: Catalogue) -> set[str]:
    """Labels of methods to choose from: of OOD experiments, without parts of an ablation."""
    return {
        label
        for each in catalogue.experiments.values()
        if each.ood and "ablation" not in each.name
        for label in each.methods
    }


def _kinds(protocol: str, known: str, results: Results) -> dict[str, str]:
    """Methods with an accuracy under `protocol`, and the kind of each."""
    compared = _compared_methods(results.catalogue)
    chosen = results.catalogue.protocols.get(protocol)
    return {
        label: kind(results.catalogue.method(label, chosen))
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


def _quality(known: str) -> list[Column]:
    columns = [
        Column("accuracy ↑", known, "classification", "labels", "accuracy", purpose="accuracy"),
        Column("ECE ↓", known, "calibration", "probs", "ece", purpose="calibration"),
    ]
    purposes = {"near": "near OOD images", "far": "far OOD images", "shift": "corrupted images"}
    for data, (name, purpose) in zip(OOD[known], purposes.items(), strict=True):
        task = "shift" if name == "shift" else "ood"
        for score in SCORES:
            heading = f"{name}: {names.dataset(data)}, AUPR ↑, {score}"
            columns.append(Column(heading, data, task, score, "aupr", purpose=purpose))
    return columns


def _recommendation(
    protocol: str, known: str, kinds: dict[str, str], results: Results
) -> Recommendation:
    columns, costs = _quality(known), _costs(known)
    found = by_method(results, protocol, _ordered(protocol, known, kinds, results), columns)
    found.loc[tied(found), "text"] += f" {BEST}"
    present = [kind for kind in KINDS if kind in kinds.values()]
    of_kind = {kind: found[found["method"].map(kinds) == kind] for kind in present}
    title = f"{names.dataset(known)}, {names.protocol(protocol, known)}"
    head = ["method (seeds)", *(each.heading for each in columns)]
    lines = {kind: method_lines(each) for kind, each in of_kind.items()}
    cost_head = ["method", "extra data", *(each.heading for each in costs)]
    cost_lines = {
        kind: _cost_lines(protocol, list(each["method"].unique()), costs, results)
        for kind, each in of_kind.items()
    }
    return Recommendation(
        title,
        [f"{kind}. {_answer(each)}." for kind, each in of_kind.items()],
        {
            "best methods": _leaders(of_kind | {"any": found}),
            "results": sectioned(head, lines),
            "costs": sectioned(cost_head, cost_lines),
        },
        _picture(f"choice-{protocol}", title, found[found["metric"] == "aupr"]),
    )


def _ordered(protocol: str, known: str, methods: Iterable[str], results: Results) -> list[str]:
    """Methods by their AUPR on the similar OOD set, by the better of their scores, the best first."""
    found = results.summaries(protocol).query("metric == 'aupr'")
    found = found[found["score"].isin(SCORES) & (found["data"] == OOD[known][0])]
    best = found.groupby("method")["mean"].max()
    return sorted(methods, key=lambda method: -best.get(method, 0.0))


def _picture(name: str, title: str, found: DataFrame) -> Picture:
    """The AUPR on each OOD set by the better of a method's scores."""
    best = found.groupby(["method", "data"], sort=False)["mean"].max().unstack()
    best = best.loc[found["method"].unique(), found["data"].unique()].dropna(axis=1, how="all")
    figure = plots.aupr_gaps(best.rename(columns=names.dataset))
    words = (
        f"{title}: OOD detection by the better of a method's two scores; further left is better."
    )
    return Picture(name, words, figures.png(figure))


def _cost_lines(
    protocol: str, methods: Sequence[str], columns: Sequence[Column], results: Results
) -> list[list[str]]:
    """Means of the costs, which are never marked as best, and the extra data that the method needs."""
    found = by_method(results, protocol, methods, columns)
    measured = found[found["n"].notna()]
    pairs = zip(measured["mean"], measured["digits"], strict=True)
    found.loc[measured.index, "text"] = [f"{mean:,.{digits}f}" for mean, digits in pairs]
    chosen = results.catalogue.protocols.get(protocol)
    extra = [results.catalogue.method(label, chosen).extra_data for label in methods]
    cells = (each["text"] for _, each in found.groupby("method", sort=False))
    return [
        [names.method(label), data, *line]
        for label, data, line in zip(methods, extra, cells, strict=True)
    ]


def _leading(found: DataFrame) -> dict[str, list[str]]:
    """By purpose, the methods with the best result or tied with it."""
    best = found[tied(found)]
    pairs = set(zip(best["purpose"], best["method"], strict=True))
    methods = found["method"].unique()
    return {
        purpose: [method for method in methods if (purpose, method) in pairs]
        for purpose in found["purpose"].unique()
    }


def _leaders(groups: Mapping[str, DataFrame]) -> str:
    """The best methods for each purpose, of each kind and of all."""
    leading = [_leading(found) for found in groups.values()]
    first = groups["any"].drop_duplicates("purpose")
    lines = [
        [
            heading.removesuffix(f", {SCORES[0]}"),
            *(", ".join(map(names.method, each[purpose])) or NOT_RUN for each in leading),
        ]
        for heading, purpose in zip(first["heading"], first["purpose"], strict=True)
    ]
    head = ["by", *(KINDS.get(kind, kind) for kind in groups)]
    return markdown(head, lines)


def _answer(found: DataFrame) -> str:
    """Strengths of the methods of a kind; results that most of them share are omitted."""
    methods = list(found["method"].unique())
    most = max(1, len(methods) // 2)
    telling = {key: best for key, best in _leading(found).items() if len(best) <= most}
    best_for = {m: [purpose for purpose, best in telling.items() if m in best] for m in methods}
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
