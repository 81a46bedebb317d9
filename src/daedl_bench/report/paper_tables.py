"""The paper's tables compared with what was measured, and which of their methods were not run."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from daedl_bench import names, paper
from daedl_bench.names import DASH, NOT_RUN, markdown
from daedl_bench.report.tables import METRIC, measure
from daedl_bench.spec import Catalogue
from daedl_bench.summary import Results

BETTER, WORSE, EQUAL = "▲", "▼", "="
# The paper rounds standard deviations to 0.1: the true one may be larger by this much.
ROUNDING = 0.05


def published() -> DataFrame:
    """Every cell of the paper's tables, times 100; NaN where the paper gives no figure."""
    return DataFrame(
        {
            "table": table.name,
            "known": column.id,
            "label": label,
            "data": column.ood or column.id,
            "task": column.task,
            "score": column.score,
            "metric": column.metric,
            "published": np.nan if cell is None else cell.mean,
            "published_std": np.nan if cell is None else cell.deviation,
            "in_paper": True,
        }
        for table in paper.tables().values()
        for label, row in table.rows.items()
        for column, cell in zip(table.columns, row, strict=True)
    )


def compare(results: Results) -> DataFrame:
    """The cells of every table, measured under every protocol of its dataset, with `mark` and `text`."""
    cells = published()
    cells = pd.concat([cells, _unpublished(cells, results)], ignore_index=True)
    cells["method"] = cells["label"].map(results.catalogue.canonical)
    protocols = list(dict.fromkeys([*results.catalogue.protocols, *results.protocols]))
    known = DataFrame({"protocol": protocols, "known": [results.known(p) for p in protocols]})
    cells = cells.merge(known, on="known").assign(scale=100, digits=2)
    found = measure(cells, results, ("table", "known", "label", "protocol"))
    found["mark"] = marks(found)
    difference = 100 * found["mean"] - found["published"]
    found["text"] = [
        f"{text} {mark} {by:+.2f}".replace("-", "−") if mark else text
        for text, mark, by in zip(found["text"], found["mark"], difference, strict=True)
    ]
    return found


def marks(found: DataFrame) -> list[str]:
    """Whether each mean is better than, worse than or equal to the published one; "" without one.

    Equal if the means differ by at most the sum of both standard deviations,

        |m − m'| ≤ s + s' + 0.05

    where 0.05 is the rounding of the paper's s'. A single seed has no deviation: s' + 0.05 is used.
    """
    difference = 100 * found["mean"] - found["published"]
    spread = found["published_std"] + ROUNDING
    equal = difference.abs() <= (100 * found["std"]).fillna(spread) + spread
    better = (difference > 0) != found["metric"].isin(names.LOWER_IS_BETTER)
    choices = [difference.isna(), equal, better]
    return [str(each) for each in np.select(choices, ["", EQUAL, BETTER], WORSE)]


def _unpublished(cells: DataFrame, results: Results) -> DataFrame:
    """Cells of measured methods that a table does not contain; ablations contain parts of one method."""
    columns = cells[["table", "known", *METRIC]].drop_duplicates()
    columns = columns[~columns["table"].str.contains("ablation")]
    found = columns.merge(results.summary, on=METRIC).rename(columns={"method": "label"})
    found = found[found["known"] == found["protocol"].map(results.known)]
    listed = set(zip(cells["table"], cells["label"].map(results.catalogue.canonical), strict=True))
    new = [pair not in listed for pair in zip(found["table"], found["label"], strict=True)]
    order = [label for protocol in results.protocols for label in results.methods(protocol)]
    lines = found.loc[new, ["table", "known", "label"]].drop_duplicates()
    lines = lines.sort_values("label", key=lambda label: label.map(order.index))
    return lines.merge(columns, on=["table", "known"]).assign(
        published=np.nan, published_std=np.nan, in_paper=False
    )


def tally(compared: DataFrame) -> str:
    """Per protocol, run or not: published figures, how many were measured, and their marks."""
    lines = []
    for protocol, cells in compared[compared["published"].notna()].groupby("protocol", sort=False):
        counts = [int((cells["mark"] == each).sum()) for each in (BETTER, EQUAL, WORSE)]
        lines.append([str(protocol), *map(str, (len(cells), sum(counts), *counts))])
    head = ["protocol", "published figures", "measured here", "▲ better", "= equal", "▼ worse"]
    return markdown(head, lines, left=1)


def tables(compared: DataFrame, results: Results) -> dict[str, dict[str, str]]:
    """By title of the paper's table its parts, by in-distribution dataset."""
    return {
        table.title: {
            names.dataset(str(known)): _part(part, str(known), results)
            for known, part in compared[compared["table"] == name].groupby("known", sort=False)
        }
        for name, table in paper.tables().items()
    }


def _part(part: DataFrame, known: str, results: Results) -> str:
    """One table for one in-distribution dataset: per method the published line, then ours."""
    metrics = part.drop_duplicates(METRIC)[METRIC].itertuples(index=False, name=None)
    head = ["method", "", *(_heading(known, *each) for each in metrics)]
    lines: list[list[str]] = []
    for label, cells in part.groupby("label", sort=False):
        name = f"**{names.method(str(label))}**"
        if cells["in_paper"].all():
            lines += [[name, "published", *_published_cells(cells)]]
            ours = _our_lines(cells[cells["protocol"].isin(results.protocols)], known)
            lines += [["", *each] for each in ours or [["ours", *[NOT_RUN] * (len(head) - 2)]]]
        else:
            measured = cells.groupby("protocol")["n"].transform("count") > 0
            first, *others = _our_lines(cells[measured], known)
            lines += [[f"{name} (not in the paper's table)", *first], *(["", *e] for e in others)]
    return markdown(head, lines, left=2)


def _published_cells(cells: DataFrame) -> list[str]:
    first = cells.drop_duplicates(METRIC)
    pairs = zip(first["published"], first["published_std"], strict=True)
    return [DASH if np.isnan(mean) else f"{mean:.2f} ± {std:.1f}" for mean, std in pairs]


def _our_lines(cells: DataFrame, known: str) -> list[list[str]]:
    """One line per protocol; none if nothing was measured."""
    if cells["n"].isna().all():
        return []
    lines = []
    for protocol, line in cells.groupby("protocol", sort=False):
        seeds = int(line["seeds"].iloc[0])
        name = f"ours, {names.protocol(str(protocol), known)}"
        lines.append([f"{name}, {names.seeds(seeds)}" if seeds else name, *line["text"]])
    return lines


def _heading(known: str, data: str, task: str, score: str, metric: str) -> str:
    if data != known:
        return f"→ {names.dataset(data)}, {score} {names.metric(task, metric)}"
    return (
        f"{task}, "
        + (f"{score} " if task == "misclassification" else "")
        + names.metric(task, metric)
    )


def not_run(compared: DataFrame, results: Results) -> str:
    """The paper's methods without rows, per table and protocol, and the command to run them."""
    cells = compared[compared["in_paper"]]
    titles = {name: table.title for name, table in paper.tables().items()}
    several = cells.groupby("table")["known"].transform("nunique") > 1
    lines = []
    for key, group in cells.groupby(["table", "known", "protocol"], sort=False):
        name, known, protocol = map(str, key)
        title = titles[name] + (f", {names.dataset(known)}" if several[group.index].all() else "")
        for (_, part), labels in _missing(group, results).items():
            methods = ", ".join(map(names.method, labels)) + (f" ({part} only)" if part else "")
            command = _command(results.catalogue, protocol, known, group, labels)
            lines.append([title, protocol.removeprefix(f"{known}-"), methods, command])
    return markdown(["table", "protocol", "methods", "command"], lines) if lines else ""


def _missing(group: DataFrame, results: Results) -> dict[tuple[bool, str], list[str]]:
    """Methods that were not run, by whether they can be, and by the missing datasets; "" if all are."""
    found: dict[tuple[bool, str], list[str]] = {}
    for label, cells in group.groupby("label", sort=False):
        missing = cells.loc[~cells["ran"], "data"]
        if len(missing):
            some = len(missing) < len(cells)
            part = ", ".join(map(names.dataset, missing.unique())) if some else ""
            key = label in results.catalogue.methods, part
            found.setdefault(key, []).append(str(label))
    return found


def _command(
    catalogue: Catalogue, protocol: str, known: str, table: DataFrame, labels: list[str]
) -> str:
    """The command that runs the methods `labels` of one of the paper's tables, as Markdown.

    Of several experiments with the table's datasets the one with most of its methods is taken, so that
    one command runs them all, and then the one with the fewest other datasets.
    """
    data = {each.partition("/")[0] for each in table["data"]}
    fitting = [
        (experiment, short)
        for experiment in catalogue.experiments.values()
        for short, each in experiment.protocols.items()
        if each.name == protocol and experiment.test == known and data <= set(experiment.units)
    ]
    if not fitting or not set(labels) <= set(catalogue.methods):
        return "none: no method or experiment covers it yet"
    listed = set(table["label"])
    fitting.sort(key=lambda pair: (-len(listed & set(pair[0].methods)), len(pair[0].units)))
    experiment, short = fitting[0]
    return f"`{names.command(experiment.name, short, labels)}`"
