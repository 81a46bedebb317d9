"""Tables of the regression study: UCI sets compared with published figures, OOD inputs, calibration."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from pandas import DataFrame

from daedl.methods import regression
from daedl_bench.names import DASH, markdown
from daedl_bench.studies.regression.data import SETS
from daedl_bench.studies.regression.measure import key
from daedl_bench.summary import Results

EXPERIMENT, SPEED_EXPERIMENT = "regression", "regression-speed"
# Published means: NLL and RMSE of deep evidential regression (Amini et al., 2020), NLL of deep ensembles as
# cited there.
PUBLISHED: Mapping[str, Mapping[str, Sequence[float]]] = MappingProxyType(
    {
        "nll": {
            "DER, published": (1.03, 2.35, 1.39, 3.01, 0.89, -1.24, 2.81, -5.73, 2.63),
            "Ensemble, published": (1.18, 2.41, 1.38, 3.06, 0.94, -1.20, 2.79, -5.63, 2.83),
        },
        "rmse": {"DER, published": (1.57, 3.06, 2.06, 5.85, 0.61, 0.09, 4.23, 0.00, 4.64)},
    }
)
UNLIKE_INPUTS = {"extrapolation": "left out", "foreign": "other set", "noise": "noise"}
SCORES = ("total", "epistemic")
LEVELS = ("50", "80", "90", "95")


def own_rows(results: Results) -> DataFrame:
    """Rows of the study, measured with the present settings."""
    every = results.every_row
    own = every[(every["experiment"] == EXPERIMENT) & every["method"].isin(regression.METHODS)]
    keys = [
        key(*identity) for identity in zip(own["data"], own["seed"], own["method"], strict=True)
    ]
    return own[own["spec"] == keys]


def _standard_error(values: Sequence[float], digits: int) -> str:
    """Mean ± standard error, and the number of splits; a dash without any."""
    if not len(values):
        return DASH
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}"
    return f"{text} ({len(values)})"


def _accuracy(results: Results, metric: str, digits: int) -> str:
    rows = own_rows(results)
    rows = rows[(rows["task"] == EXPERIMENT) & (rows["metric"] == metric)]
    published = PUBLISHED.get(metric, {})
    lines = []
    for number, name in enumerate(SETS):
        of_set = rows[rows["data"] == name]
        own = (of_set[of_set["method"] == method]["value"] for method in regression.METHODS)
        places = digits + 2 if name == "naval" and metric != "nll" else digits
        cells = [_standard_error(list(values), places) for values in own]
        lines.append([name, *cells, *(f"{each[number]:.2f}" for each in published.values())])
    titles = [method.title for method in regression.METHODS.values()]
    return markdown([metric.upper(), *titles, *published], lines, left=1)


def nll(results: Results) -> str:
    """NLL per set and method."""
    return _accuracy(results, "nll", 2)


def rmse(results: Results) -> str:
    """RMSE per set and method."""
    return _accuracy(results, "rmse", 2)


def crps(results: Results) -> str:
    """CRPS per set and method."""
    return _accuracy(results, "crps", 3)


def calibration(results: Results) -> str:
    """Coverage of intervals in percent, with and without the conformal step, means over sets and splits."""
    rows = own_rows(results)
    rows = rows[rows["task"] == EXPERIMENT]
    lines = []
    for name, method in regression.METHODS.items():
        for score in ("distribution", "conformal"):
            own = rows[(rows["method"] == name) & (rows["score"] == score)]
            values = [own[own["metric"] == f"coverage{level}"]["value"] for level in LEVELS]
            cells = [f"{100 * each.mean():.1f}" if len(each) else DASH for each in values]
            lines.append([method.title, score, *cells, str(len(values[0]))])
    return markdown(["method", "intervals", *(f"{x}%" for x in LEVELS), "splits"], lines, left=2)


def width(results: Results) -> str:
    """Mean width of 90% intervals per set, of the prediction / with the conformal step."""
    rows = own_rows(results)
    rows = rows[(rows["task"] == EXPERIMENT) & (rows["metric"] == "width90")]
    return _per_set(rows, ("distribution", "conformal"), lambda value: f"{value:.3g}")


def left_out(results: Results) -> str:
    """Coverage of 90% intervals in percent per set, on what was left out of training."""
    rows = own_rows(results)
    rows = rows[(rows["task"] == "extrapolation") & (rows["metric"] == "coverage90")]
    return _per_set(rows, ("distribution",), lambda value: f"{100 * value:.0f}")


def _per_set(rows: DataFrame, scores: Sequence[str], text: Callable[[float], str]) -> str:
    """Means over splits, one line per set and one column per method, the scores separated by a slash."""
    means = rows.groupby(["data", "method", "score"])["value"].mean()
    lines = [
        [
            name,
            *(
                " / ".join(
                    text(means[name, method, score]) if (name, method, score) in means else DASH
                    for score in scores
                )
                for method in regression.METHODS
            ),
        ]
        for name in SETS
    ]
    titles = [method.title for method in regression.METHODS.values()]
    return markdown(["set", *titles], lines, left=1)


def unlike(results: Results) -> str:
    """AUROC in percent of the total variance and the epistemic variance, ranks, and coverage.

    Means over the sets and splits on which every method was measured. Rank 1 has the highest AUROC; a method
    without an epistemic variance is ranked by its total variance.
    """
    rows = own_rows(results)
    covered = _per_method(rows, "extrapolation", "distribution", "coverage90")
    if covered.empty:
        return markdown(["AUROC"], [["not measured"]], left=1)
    columns = {}
    for score in SCORES:
        for task, title in UNLIKE_INPUTS.items():
            values = _per_method(rows, task, score, "auroc").reindex_like(covered)
            columns[f"{title}, {score}"] = 100 * values.mean()
    if covered.shape[1] > 1:
        columns |= {f"rank, {score}": values for score, values in ranks(rows).items()}
    columns["coverage of 90%, left out"] = 100 * covered.mean()
    lines = [
        [
            method.title,
            *(DASH if np.isnan(each[name]) else f"{each[name]:.1f}" for each in columns.values()),
        ]
        for name, method in regression.METHODS.items()
        if name in covered
    ]
    head = [f"AUROC, {len(covered)} sets and splits", *columns]
    return markdown(head, lines, left=1)


def ranks(rows: DataFrame) -> dict[str, Any]:
    """Mean rank per method by each score, over the kinds of unlike inputs, sets and splits."""
    found = {}
    for score in SCORES:
        ranked = []
        for task in UNLIKE_INPUTS:
            totals = _per_method(rows, task, "total", "auroc")
            values = _per_method(rows, task, score, "auroc").reindex_like(totals)
            ranked.append(values.fillna(totals).rank(axis=1, ascending=False).mean())
        found[score] = sum(ranked) / len(ranked)
    return found


def _per_method(rows: DataFrame, task: str, score: str, metric: str) -> DataFrame:
    """A metric, one row per set and split that every method was measured on, one column per method."""
    found = rows[(rows["task"] == task) & (rows["metric"] == metric)]
    values = found[found["score"] == score].pivot_table(
        index=["data", "seed"], columns="method", values="value"
    )
    every = found.groupby(["data", "seed"])["method"].nunique()
    complete = every[every == found["method"].nunique()].index
    return values[values.index.isin(complete)]


def speed(results: Results) -> str:
    """Time of a prediction relative to the bare network, the last measurement of each."""
    every = results.every_row
    rows = every[every["experiment"] == SPEED_EXPERIMENT]
    lines = [
        [str(name), f"{own['value'].iloc[-1]:.2f}"]
        for name, own in rows.groupby("data", sort=False)
    ]
    return markdown(["network, 4,096 rows", "prediction / network"], lines, left=1)


TABLES = MappingProxyType(
    {
        "regression-speed": speed,
        "regression-nll": nll,
        "regression-rmse": rmse,
        "regression-crps": crps,
        "regression-calibration": calibration,
        "regression-width": width,
        "regression-unlike": unlike,
        "regression-left-out": left_out,
    }
)
