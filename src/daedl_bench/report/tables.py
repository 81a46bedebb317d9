"""Tables in Markdown: one line per method, one column per metric."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from pandas import DataFrame, Series

from daedl_bench.datasets import corrupted_sets
from daedl_bench.report import names
from daedl_bench.report.summary import METRIC, Results, Summary

DASH, NOT_RUN, UNDEFINED = "–", "not run", "undefined"
SCORES = ("aleatoric", "epistemic", "density")


class Column(NamedTuple):
    """A column of a table: its heading, the metric, and the scale and digits that it is printed with."""

    heading: str
    data: str
    task: str
    score: str
    metric: str
    scale: float = 100
    digits: int = 2


def text(summary: Summary, scale: float = 100, digits: int = 2, count: bool = False) -> str:
    """ "99.85 ± 0.03", without the deviation for a single seed; with `count` "99.85 ± 0.03 (5)"."""
    if math.isnan(summary.mean):
        return UNDEFINED
    shown = f"{scale * summary.mean:,.{digits}f}"
    if not math.isnan(summary.std):
        shown += f" ± {scale * summary.std:,.{digits}f}"
    return f"{shown} ({summary.n})" if count else shown


def select(columns: Iterable[Column], results: Results, protocol: str) -> DataFrame:
    """What was measured under `protocol`: one row per column and method, with the fields of both."""
    found = results.summary[results.summary["protocol"] == protocol]
    return DataFrame(list(columns), columns=Column._fields).merge(found, on=METRIC)


def seed_counts(found: DataFrame, line: str = "method") -> Series:
    """The number of seeds of each line; 0 where it differs among the line's columns."""
    return found.groupby(line)["n"].agg(lambda n: n.iloc[0] if n.nunique() == 1 else 0).astype(int)


def texts(found: DataFrame, line: str = "method") -> list[str]:
    """The text of each row, with the number of seeds where it differs within its line."""
    mixed = found[line].map(seed_counts(found, line)) == 0
    cells = found[[*Summary._fields, "scale", "digits"]].itertuples(index=False, name=None)
    return [
        text(Summary(mean, std, int(n)), scale, digits, count)
        for (mean, std, n, scale, digits), count in zip(cells, mixed, strict=True)
    ]


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown, the first `left` columns left-aligned and the others right-aligned."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    cells = [head, rule, *lines]
    return "\n".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in each)} |" for each in cells
    )


def method_table(
    columns: Sequence[Column], results: Results, protocol: str, methods: list[str]
) -> list[list[str]]:
    """The lines of a table with one line per method, the number of seeds behind its name."""
    found = select(columns, results, protocol)
    found["text"] = texts(found)
    shown = found.pivot(index="method", columns="heading", values="text")
    shown = shown.reindex(index=methods, columns=[each.heading for each in columns]).fillna(DASH)
    counts = seed_counts(found)
    return [[_label(method, counts), *cells] for method, *cells in shown.itertuples(name=None)]


def _label(method: str, counts: Series) -> str:
    """The method's name with its number of seeds, where it is the same for all columns."""
    title = names.method(method)
    if method not in counts:
        return f"{title}: {NOT_RUN}"
    return f"{title} ({counts[method]})" if counts[method] else title


def metric_tables(results: Results, protocol: str) -> dict[str, str]:
    """By title, all metrics measured under `protocol`, except those of single corruptions."""
    known, methods = results.known(protocol), results.methods(protocol)
    title = f"Classification and calibration on {names.dataset(known)}"
    tables = {title: _table(_classification(known), results, protocol, methods)}
    lines: list[list[str]] = []
    for data, task in _detection_tasks(results, protocol):
        columns = _detection(data, task)
        lines.append([f"**{names.dataset(data)}**", *[""] * len(columns)])
        lines += method_table(columns, results, protocol, methods)
    if lines:
        head = ["method (seeds)", *(each.heading for each in columns)]
        tables[f"Detection: {names.dataset(known)} against OOD data"] = markdown(head, lines)
    tables["Cost"] = _table(_cost(known), results, protocol, methods)
    return tables


def moons_table(results: Results) -> str:
    """Mean uncertainty on two moons; "" if they were not run."""
    found = results.summary.query("protocol == '' and task == 'uncertainty'")
    if found.empty:
        return ""
    metrics = found[METRIC].drop_duplicates().itertuples(index=False, name=None)
    columns = [Column(each[0], *each, 1, 3) for each in metrics]
    return _table(columns, results, "", list(pd.unique(found["method"])))


def run_table(results: Results, protocol: str, settings: Mapping[str, str]) -> str:
    """The seeds of each method under `protocol`, and its settings."""
    found = results.frame[results.frame["protocol"] == protocol]
    seeds = found.groupby("method")["seed"].unique()
    lines = [[names.method(m), words, _seed_range(seeds[m])] for m, words in settings.items()]
    return markdown(["method", "settings", "seeds"], lines, left=3)


def _table(columns: Sequence[Column], results: Results, protocol: str, methods: list[str]) -> str:
    head = ["method (seeds)", *(each.heading for each in columns)]
    return markdown(head, method_table(columns, results, protocol, methods))


def _seed_range(numbers: Iterable[int]) -> str:
    """ "0–4" for more than two consecutive seeds, else "0, 2"."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}–{ordered[-1]}"
    return ", ".join(map(str, ordered))


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
        Column(f"{names.metric(metric)}, {score}", data, task, score, metric)
        for metric in ("aupr", "auroc", "fpr95")
        for score in SCORES
    ]


def _detection_tasks(results: Results, protocol: str) -> list[tuple[str, str]]:
    """Pairs of dataset and task, OOD sets first; of corruptions only the means over them."""
    found = results.summary[results.summary["protocol"] == protocol]
    found = found[found["task"].isin(["ood", "shift"])].sort_values("task", kind="stable")
    pairs = found[["data", "task"]].drop_duplicates().itertuples(index=False, name=None)
    return [(data, task) for data, task in pairs if is_mean(data)]


def is_mean(data: str) -> bool:
    """Whether `data` is a dataset or a mean over corruptions rather than a single corruption."""
    return "/" not in data or data in corrupted_sets(data.partition("/")[0])
