"""Tables of the panel: the figures of every method, and which goals DAEDL reaches."""

from collections.abc import Container, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from pandas import DataFrame, Series, isna

from daedl_bench import names
from daedl_bench.names import DASH, markdown
from daedl_bench.results import FIGURE
from daedl_bench.studies.panel import photos, tables
from daedl_bench.studies.panel.case import Case
from daedl_bench.studies.panel.measure import METHODS, TEMPERING, key
from daedl_bench.summary import Results

EXPERIMENT = "panel"
CASES: Mapping[str, Case] = {**tables.CASES, **photos.CASES}
Figures = Mapping[str, float]
ACCEPTING = ("daedl", "softmax", "energy", "knn", "mahalanobis")
# Smallest accuracies that are goals, by case.
LEAST = {"photos-4-backbone": 0.95}
OURS, REFERENCE, CALIBRATED = "daedl", "softmax", "temperature"
MISSING = "not measured"  # with the present defaults


class Column(NamedTuple):
    """A column of the table: `combine` joins the figures of several OOD sets."""

    title: str
    task: str
    metric: str
    scale: float = 100
    combine: str = "mean"
    digits: int = 1


class Goal(NamedTuple):
    """Whether a goal is met, with the figure and its reference."""

    met: bool
    text: str


COLUMNS = {
    "accuracy": Column("accuracy", "classification", "accuracy"),
    "ece": Column("ECE", "calibration", "ece"),
    "brier": Column("Brier", "classification", "brier"),
    "nll": Column("NLL", "classification", "nll", 1, digits=3),
    "near": Column("near AUROC", "near", "auroc"),
    "far": Column("far AUROC, lowest", "far", "auroc", combine="min"),
    "known accepted": Column("known accepted", "known", "accepted"),
    "near accepted": Column("near accepted", "near", "accepted"),
    "far accepted": Column("far accepted, most", "far", "accepted", combine="max"),
    "training": Column("training, s", "cost", "seconds", 1),
}


def panel(
    results: Results, cases: Container[str] = CASES, compared: Container[str] = METHODS
) -> str:
    """Figures, one line per case and method."""
    rows = current(results)
    seeds, found = rows.groupby(["protocol", "method"])["seed"].nunique(), means(rows)
    chosen = product([n for n in CASES if n in cases], [n for n in METHODS if n in compared])
    lines = [
        [CASES[case].title, names.method(method)]
        + (
            [
                str(seeds[case, method]),
                *(_shown(found[case][method][n], c) for n, c in COLUMNS.items()),
            ]
            if method in found[case]
            else ["0", MISSING, *[DASH] * (len(COLUMNS) - 1)]
        )
        for case, method in chosen
    ]
    return markdown(["", "", "seeds", *(each.title for each in COLUMNS.values())], lines, left=2)


def panel_photos(results: Results) -> str:
    """DAEDL and softmax on photos."""
    return panel(results, set(photos.CASES) - {"mnist"}, (OURS, REFERENCE))


def panel_goals(results: Results) -> str:
    """One line per case: whether DAEDL meets each goal, and its figure."""
    rows = current(results)
    judged = {
        case: judge(methods, aurocs(rows, case), time_ratio(rows, case), LEAST.get(case, 0.0))
        for case, methods in complete(rows).items()
    }
    head = ["", *next(iter(judged.values()), {})]
    lines = [
        [each.title, *(f"{'yes' if g.met else '**no**'}: {g.text}" for g in judged[case].values())]
        if case in judged
        else _missing(each, head)
        for case, each in CASES.items()
    ]
    return markdown(head, lines)


def panel_accepted(results: Results) -> str:
    """One line per set of images: the share that each method accepts, and the AUROC of DAEDL and the best."""
    rows = current(results)
    judged = complete(rows)
    rows = rows[rows["protocol"].isin(photos.CASES) & (rows["data"] != "test")]
    every: Any = rows[rows["metric"] == "accepted"].pivot_table(
        "value", ["protocol", "data"], "method"
    )
    titles = (f"{names.method(each)} accepts" for each in ACCEPTING)
    head = ["", "set", *titles, "DAEDL AUROC", "best other AUROC"]
    lines = []
    for case in photos.CASES:
        if case not in judged:
            lines.append(_missing(CASES[case], head))
            continue
        auroc = aurocs(rows, case)
        for data, shares in every.loc[case].to_dict("index").items():
            own = auroc[data][OURS]
            best = max((each for each in auroc[data] if each != OURS), key=auroc[data].__getitem__)
            cells = (f"{100 * shares[method]:.1f}" for method in ACCEPTING)
            ahead = f"{names.method(best)} {100 * auroc[data][best]:.1f}"
            lines.append([CASES[case].title, data, *cells, f"{100 * own:.1f}", ahead])
    return markdown(head, lines, left=2)


def panel_tempering(results: Results) -> str:
    """One line per case: DAEDL before and after its temperature, and the OOD set with the largest loss."""
    rows = current(results)
    rows = rows[rows["task"] == TEMPERING]
    seeds = rows.groupby("protocol")["seed"].nunique()
    every: Any = rows.pivot_table("value", ["protocol", "data", "metric"], "score").to_dict("index")
    head, lines = ["", "seeds", "ECE", "Brier", "aleatoric AUROC, largest loss"], []
    for case in CASES:
        if case not in seeds:
            lines.append(_missing(CASES[case], head))
            continue
        found = {key[1:]: each for key, each in every.items() if key[0] == case}
        changes = {
            data: each["after"] - each["before"]
            for (data, metric), each in found.items()
            if metric == "aleatoric auroc"
        }
        worst = min(changes, key=lambda data: changes[data])
        shown = [found["test", metric] for metric in ("ece", "brier")]
        cells = [f"{100 * each['before']:.2f} → {100 * each['after']:.2f}" for each in shown]
        change = f"{100 * changes[worst]:+.2f} on {worst}"
        lines.append([CASES[case].title, str(seeds[case]), *cells, change])
    return markdown(head, lines)


def _missing(case: Case, head: Sequence[str]) -> list[str]:
    return [case.title, MISSING, *[DASH] * (len(head) - 2)]


def means(rows: DataFrame) -> dict[str, dict[str, Figures]]:
    """Means over seeds by case and method, in the order of CASES and METHODS."""
    keys, found = ["protocol", "method"], {}
    # A refused calibration, which is NaN, must not be averaged away.
    values = rows.groupby(list(FIGURE))["value"].agg(_mean).reset_index()
    for name, column in COLUMNS.items():
        chosen = values[(values["task"] == column.task) & (values["metric"] == column.metric)]
        found[name] = chosen.groupby(keys)["value"].agg(column.combine)
    by_key: Any = DataFrame(found).to_dict("index")
    return {case: {m: by_key[case, m] for m in METHODS if (case, m) in by_key} for case in CASES}


def complete(rows: DataFrame) -> dict[str, dict[str, Figures]]:
    """`means` of the cases that every method was measured on."""
    return {case: found for case, found in means(rows).items() if len(found) == len(METHODS)}


def aurocs(rows: DataFrame, case: str) -> dict[str, Figures]:
    """Means over seeds by OOD set and method."""
    chosen = rows[(rows["protocol"] == case) & (rows["metric"] == "auroc")]
    found: Any = chosen.pivot_table("value", "data", "method").to_dict("index")
    return dict(found)


def time_ratio(rows: DataFrame, case: str) -> float:
    """Median over seeds of DAEDL's training time relative to softmax's, which are measured in one process."""
    chosen = rows[(rows["protocol"] == case) & (rows["metric"] == "seconds")]
    times = chosen[chosen["score"] == "training"].pivot_table("value", "seed", "method")
    return float((times[OURS] / times[REFERENCE]).median())


def judge(
    methods: Mapping[str, Figures],
    auroc: Mapping[str, Figures],
    times: float,
    least: float = 0.0,
) -> dict[str, Goal]:
    """The goals by title, given figures by method, AUROC by OOD set and method, and the ratio of times.

    `least` is the smallest accuracy that is a goal.
    """
    ours, reference = methods[OURS], methods[REFERENCE]
    limit = max(0.03, methods[CALIBRATED]["ece"])
    gaps = {
        data: found[OURS] - max(each for name, each in found.items() if name != OURS)
        for data, found in auroc.items()
    }
    worst = min(gaps, key=lambda data: gaps[data])
    return {
        "accuracy, at most 0.3 below softmax": Goal(
            ours["accuracy"] >= max(reference["accuracy"] - 0.003, least),
            f"{100 * ours['accuracy']:.1f}, softmax {100 * reference['accuracy']:.1f}"
            + (f", at least {100 * least:.0f}" if least else ""),
        ),
        "ECE, at most 3 or with temperature": Goal(
            ours["ece"] <= limit, f"{100 * ours['ece']:.1f}, limit {100 * limit:.1f}"
        ),
        "AUROC, at most 0.5 below the best other": Goal(
            gaps[worst] >= -0.005, f"{100 * gaps[worst]:+.1f} on {worst}"
        ),
        "far accepted, at most 5%": Goal(
            ours["far accepted"] <= 0.05, _share(ours["far accepted"])
        ),
        "known accepted, 93 to 97%": Goal(
            0.93 <= ours["known accepted"] <= 0.97, _share(ours["known accepted"])
        ),
        "training, at most 1.5 times softmax": Goal(times <= 1.5, f"{times:.1f}"),
    }


def current(results: Results) -> DataFrame:
    """The rows of the panel, measured with the present defaults; of rows for the same figure the last."""
    rows = results.every_row
    rows = rows[(rows["experiment"] == EXPERIMENT) & (rows["score"] != "fit")]
    trials = list(rows[["protocol", "method", "seed"]].itertuples(index=False, name=None))
    keys = {each: key(*each) for each in set(trials)}
    rows = rows[rows["spec"] == [keys[each] for each in trials]]
    return rows.drop_duplicates([*FIGURE, "seed"], keep="last")


def _mean(values: "Series[float]") -> float:
    return float(values.mean(skipna=False))


def _shown(value: float, column: Column) -> str:
    return DASH if isna(value) else f"{column.scale * value:.{column.digits}f}"


def _share(value: float) -> str:
    return "no threshold" if isna(value) else f"{value:.1%}"
