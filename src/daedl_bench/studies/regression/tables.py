"""Tables of the regression study: UCI sets beside published figures, unlike inputs, calibration."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from pandas import DataFrame

from daedl.methods import regression
from daedl_bench.names import DASH, markdown
from daedl_bench.studies.regression.data import SETS
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
LEVELS = ("50", "80", "90", "95")


def _rows(results: Results) -> DataFrame:
    every = results.every_row
    return every[every["experiment"] == EXPERIMENT]


def _standard_error(values: Sequence[float], digits: int) -> str:
    """Mean ± standard error, and the number of splits; a dash without any."""
    if not len(values):
        return DASH
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}"
    return f"{text} ({len(values)})"


def _accuracy(results: Results, metric: str, digits: int) -> str:
    rows = _rows(results)
    rows = rows[(rows["task"] == EXPERIMENT) & (rows["metric"] == metric)]
    published = PUBLISHED[metric]
    lines = []
    for number, name in enumerate(SETS):
        of_set = rows[rows["data"] == name]
        own = (of_set[of_set["method"] == method]["value"] for method in regression.METHODS)
        places = 4 if (name, metric) == ("naval", "rmse") else digits
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


def calibration(results: Results) -> str:
    """Coverage of intervals in percent, with and without the conformal step, means over sets and splits."""
    rows = _rows(results)
    rows = rows[rows["task"] == EXPERIMENT]
    lines = []
    for name, method in regression.METHODS.items():
        for score in ("distribution", "conformal"):
            own = rows[(rows["method"] == name) & (rows["score"] == score)]
            values = [own[own["metric"] == f"coverage{level}"]["value"] for level in LEVELS]
            cells = [f"{100 * each.mean():.1f}" if len(each) else DASH for each in values]
            lines.append([method.title, score, *cells, str(len(values[0]))])
    return markdown(["method", "intervals", *(f"{x}%" for x in LEVELS), "splits"], lines, left=2)


def unlike(results: Results) -> str:
    """AUROC in percent of the total variance and the epistemic variance, and coverage beyond the data.

    Means over the sets and splits that were measured for the method.
    """
    rows = _rows(results)
    lines = []
    for name, method in regression.METHODS.items():
        own = rows[rows["method"] == name]
        cells = []
        for task in ("extrapolation", "foreign", "noise"):
            for score in ("total", "epistemic"):
                found = own[
                    (own["task"] == task) & (own["score"] == score) & (own["metric"] == "auroc")
                ]
                cells.append(f"{100 * found['value'].mean():.1f}" if len(found) else DASH)
        covered = own[(own["task"] == "extrapolation") & (own["metric"] == "coverage90")]["value"]
        cells.append(f"{100 * covered.mean():.1f}" if len(covered) else DASH)
        lines.append([method.title, *cells, str(len(covered))])
    tasks = ("left out", "other set", "noise")
    head = [f"{task}, {score}" for task in tasks for score in ("total", "epistemic")]
    return markdown(["AUROC", *head, "coverage of 90%, left out", "splits"], lines, left=1)


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
        "regression-calibration": calibration,
        "regression-unlike": unlike,
    }
)
