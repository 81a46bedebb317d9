"""Tables in Markdown: one line per method, one column per metric."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from pandas import DataFrame

from daedl_bench import names
from daedl_bench.datasets import corrupted_sets
from daedl_bench.names import DASH, NOT_RUN, markdown
from daedl_bench.report import settings
from daedl_bench.results import FIGURE
from daedl_bench.summary import Results, Summary

METRIC = list(FIGURE[2:])  # data, task, score, metric
SCORES = ("aleatoric", "epistemic", "density")


class Column(NamedTuple):
    """A column of a table: its heading, the metric, and the scale and digits that it is printed with.

    `purpose` is what a good result recommends the method for; costs have none.
    """

    heading: str
    data: str
    task: str
    score: str
    metric: str
    scale: float = 100
    digits: int = 2
    purpose: str = ""


def sectioned(head: Sequence[str], sections: Mapping[str, list[list[str]]]) -> str:
    """A table whose lines are in sections with headings."""
    lines: list[list[str]] = []
    for title, section in sections.items():
        lines += [[f"**{title}**", *[""] * (len(head) - 1)], *section]
    return markdown(head, lines, left=1)


def measure(cells: DataFrame, results: Results, line: Sequence[str] = ("method",)) -> DataFrame:
    """Join `cells`, which have the columns `FIGURE`, scale and digits, with what was measured.

    Adds mean, std and n, NaN where not measured; `ran`, whether the method was evaluated on the task by
    any score; `seeds`, the number of seeds of the whole `line`, 0 if it differs among its cells, which
    then show their own; and `text`.
    """
    found = cells.merge(results.summary, on=list(FIGURE), how="left")
    task = ["protocol", "method", "data", "task"]
    found["ran"] = pd.MultiIndex.from_frame(found[task]).isin(
        pd.MultiIndex.from_frame(results.summary[task])
    )
    counts = found.groupby(list(line))["n"]
    same = counts.transform("nunique") == 1
    found["seeds"] = counts.transform("max").where(same, 0).astype(int)
    columns = [*Summary._fields, "scale", "digits", "ran", "seeds"]
    found["text"] = [
        (DASH if ran else NOT_RUN)
        if math.isnan(n)
        else Summary(mean, std, int(n)).text(scale, digits, count=not seeds)
        for mean, std, n, scale, digits, ran, seeds in found[columns].itertuples(False, None)
    ]
    return found


def by_method(
    results: Results, protocol: str, methods: Sequence[str], columns: Sequence[Column]
) -> DataFrame:
    """Results of each method in `columns`, in their order."""
    lines = DataFrame({"method": methods, "protocol": protocol}, dtype=str)
    cells = lines.merge(DataFrame(list(columns), columns=Column._fields), how="cross")
    return measure(cells, results)


def method_lines(found: DataFrame) -> list[list[str]]:
    """One line per method: its name with the number of seeds, and its cells."""
    return [
        [names.method(str(method)) + (f" ({seeds})" if seeds else ""), *cells["text"]]
        for (method, seeds), cells in found.groupby(["method", "seeds"], sort=False)
    ]


def method_table(
    results: Results, protocol: str, methods: Sequence[str], columns: Sequence[Column]
) -> str:
    """A table with one line per method."""
    head = ["method (seeds)", *(each.heading for each in columns)]
    return markdown(head, method_lines(by_method(results, protocol, methods, columns)), left=1)


def metric_tables(results: Results, protocol: str) -> dict[str, str]:
    """By title, all metrics measured under `protocol`, except of single corruptions."""
    known, methods = results.known(protocol), results.methods(protocol)
    name, columns = names.dataset(known), _classification(known)
    title = f"Classification and calibration on {name}"
    tables = {title: method_table(results, protocol, methods, columns)}
    sections = {}
    for data, task in _detection_tasks(results, protocol):
        columns = _detection(data, task)
        found = by_method(results, protocol, methods, columns)
        sections[names.dataset(data)] = method_lines(found)
    if sections:
        head = ["method (seeds)", *(each.heading for each in columns)]
        tables[f"Detection: {name} against OOD data"] = sectioned(head, sections)
    tables["Cost"] = method_table(results, protocol, methods, _cost(known))
    return tables


def moons_table(results: Results) -> str:
    """Mean uncertainty on two moons; "" if they were not run."""
    found = results.summaries("").query("task == 'uncertainty'")
    metrics = found[METRIC].drop_duplicates().itertuples(index=False, name=None)
    columns = [Column(each[0], *each)._replace(scale=1, digits=3) for each in metrics]
    return method_table(results, "", list(found["method"].unique()), columns) if columns else ""


def run_table(results: Results, protocol: str) -> str:
    """The settings of each method with rows under `protocol`, and its seeds."""
    seeds = results.under(protocol).groupby("method")["seed"].unique()
    lines = [
        [
            names.method(label),
            settings.of_method(results.catalogue, label, protocol),
            _seed_range(sorted(seeds[label])),
        ]
        for label in results.methods(protocol)
    ]
    return markdown(["method", "settings", "seeds"], lines)


def _seed_range(seeds: Sequence[int]) -> str:
    """ "0–4" for more than two consecutive seeds, else "0, 2"."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _classification(known: str) -> list[Column]:
    wrong = "misclassification"
    return [
        Column("accuracy ↑", known, "classification", "labels", "accuracy"),
        Column("Brier score ↓", known, "classification", "probs", "brier"),
        Column("NLL (not × 100) ↓", known, "classification", "probs", "nll", 1, 4),
        Column("ECE ↓", known, "calibration", "probs", "ece"),
        *(Column(f"misclass. AUPR ↑, {each}", known, wrong, each, "aupr") for each in SCORES),
        *(Column(f"AURC × 1000 ↓, {each}", known, wrong, each, "aurc", 1000) for each in SCORES),
    ]


def _cost(known: str) -> list[Column]:
    return [
        Column("training, seconds", known, "cost", "training", "seconds", 1, 0),
        Column("training, epochs", known, "cost", "training", "epochs", 1, 1),
        Column("fit afterwards, seconds", known, "cost", "fit", "seconds", 1, 1),
    ]


def _detection(data: str, task: str) -> list[Column]:
    return [
        Column(f"{names.metric(task, metric)}, {score}", data, task, score, metric)
        for metric in ("aupr", "auroc", "fpr95")
        for score in SCORES
    ]


def _detection_tasks(results: Results, protocol: str) -> list[tuple[str, str]]:
    """Pairs of dataset and task, OOD sets first; of corruptions only the means over them."""
    found = results.summaries(protocol)
    pairs = set(zip(found["data"], found["task"], strict=True))
    order = [(data, task) for task in ("ood", "shift") for data in pd.unique(found["data"])]
    return [pair for pair in order if pair in pairs and is_mean(pair[0])]


def is_mean(data: str) -> bool:
    """Whether `data` is a dataset or a mean over corruptions rather than a single corruption."""
    return "/" not in data or data in corrupted_sets(data.partition("/")[0])
