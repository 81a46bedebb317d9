"""The paper's tables beside what was measured, and what of them was not run."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from pandas import DataFrame

from daedl_bench import paper
from daedl_bench.report import names, specs
from daedl_bench.report.summary import KEY, METRIC, Results
from daedl_bench.report.tables import DASH, NOT_RUN, markdown, seed_counts, texts

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
    """The cells of every table under every protocol of its dataset, with marks; `n` is 0 if not run.

    `ran` tells whether the method was evaluated on the cell's dataset and task by any score.
    """
    cells = published()
    cells = pd.concat([cells, _unpublished(cells, results)], ignore_index=True)
    cells["method"] = cells["label"].map(results.canonical)
    protocols = list(dict.fromkeys([*results.catalogue.protocols, *results.protocols]))
    known = DataFrame({"protocol": protocols, "known": [results.known(p) for p in protocols]})
    found = cells.merge(known, on="known").merge(results.summary, on=KEY, how="left")
    question = found[["protocol", "method", "data", "task"]].itertuples(index=False, name=None)
    found["ran"] = [results.has(*each) for each in question]
    found["difference"] = 100 * found["mean"] - found["published"]
    found["mark"] = marks(found)
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
    better = (difference > 0) != found["metric"].isin(names.SMALLER_IS_BETTER)
    choices = [difference.isna(), equal, better]
    return [str(each) for each in np.select(choices, ["", EQUAL, BETTER], WORSE)]


def tally(compared: DataFrame) -> str:
    """Per protocol, run or not: published figures, how many were measured, and their marks."""
    cells = compared[compared["published"].notna()]
    lines = []
    for protocol, group in cells.groupby("protocol", sort=False):
        counts = [int((group["mark"] == each).sum()) for each in (BETTER, EQUAL, WORSE)]
        lines.append([str(protocol), *map(str, (len(group), sum(counts), *counts))])
    head = ["protocol", "published figures", "measured here", "▲ better", "= equal", "▼ worse"]
    return markdown(head, lines)


def tables(compared: DataFrame, results: Results) -> Iterator[tuple[str, dict[str, str]]]:
    """The title of each of the paper's tables, and its parts in Markdown by in-distribution dataset."""
    for name, table in paper.tables().items():
        parts = compared[compared["table"] == name].groupby("known", sort=False)
        yield (
            table.title,
            {names.dataset(str(known)): _part(part, str(known), results) for known, part in parts},
        )


def _unpublished(cells: DataFrame, results: Results) -> DataFrame:
    """Cells of measured methods that a table does not contain; ablations contain parts of one method."""
    columns = cells[["table", "known", *METRIC]].drop_duplicates()
    columns = columns[~columns["table"].str.contains("ablation")]
    found = columns.merge(results.summary, on=METRIC)
    found = found[found["known"] == found["protocol"].map(results.known)]
    listed = set(zip(cells["table"], cells["label"].map(results.canonical), strict=True))
    pairs = found[["table", "known", "method"]].drop_duplicates()
    kept = [pair not in listed for pair in zip(pairs["table"], pairs["method"], strict=True)]
    order = [label for protocol in results.protocols for label in results.methods(protocol)]
    pairs = pairs[kept].sort_values("method", key=lambda label: label.map(order.index))
    return (
        pairs.merge(columns, on=["table", "known"])
        .rename(columns={"method": "label"})
        .assign(published=np.nan, published_std=np.nan, in_paper=False)
    )


def _heading(known: str, data: str, task: str, score: str, metric: str) -> str:
    if data != known:
        return f"→ {names.dataset(data)}, {score} {names.metric(metric)}"
    words = (
        f"{score} {names.metric(metric)}" if task == "misclassification" else names.metric(metric)
    )
    return f"{task}, {words}"


def _part(part: DataFrame, known: str, results: Results) -> str:
    """One table for one in-distribution dataset: per method the published line, then ours."""
    columns = list(part[METRIC].drop_duplicates().itertuples(index=False, name=None))
    lines: list[list[str]] = []
    for label, cells in part.groupby("label", sort=False):
        in_paper = bool(cells["in_paper"].iloc[0])
        found = _published_line(cells) if in_paper else []
        ran = cells[cells["protocol"].isin(results.protocols)]
        if not in_paper:
            ran = ran.groupby("protocol").filter(lambda group: group["n"].notna().any())
        found += _our_lines(ran, known) or [["ours", *[NOT_RUN] * len(columns)]]
        name = f"**{names.method(str(label))}**" + (
            "" if in_paper else " (not in the paper's table)"
        )
        lines += [[name if n == 0 else "", *cells] for n, cells in enumerate(found)]
    head = ["method", "", *(_heading(known, *each) for each in columns)]
    return markdown(head, lines, left=2)


def _published_line(cells: DataFrame) -> list[list[str]]:
    first = cells.drop_duplicates(METRIC)[["published", "published_std"]]
    return [
        [
            "published",
            *(
                DASH if np.isnan(mean) else f"{mean:.2f} ± {std:.1f}"
                for mean, std in first.itertuples(index=False, name=None)
            ),
        ]
    ]


def _our_lines(cells: DataFrame, known: str) -> list[list[str]]:
    """One line per protocol with rows; none if the method was not run."""
    lines = []
    for protocol, group in cells.groupby("protocol", sort=False):
        measured = group[group["n"].notna()].assign(scale=100, digits=2)
        name = f"ours, {names.protocol(str(protocol), known)}"
        if measured.empty:
            lines.append([name, *[NOT_RUN] * len(group)])
            continue
        shown = dict(zip(measured.index, texts(measured, "protocol"), strict=True))
        for index, row in measured[measured["mark"] != ""].iterrows():
            difference = f"{row['difference']:+.2f}".replace("-", "−")
            shown[index] += f" {row['mark']} {difference}"
        absent = {index: DASH if ran else NOT_RUN for index, ran in group["ran"].items()}
        count = seed_counts(measured, "protocol").iloc[0]
        label = f"{name}, {names.seeds(count)}" if count else name
        lines.append([label, *(shown.get(index, absent[index]) for index in group.index)])
    return lines if cells["n"].notna().any() else []


def not_run(compared: DataFrame, results: Results) -> str:
    """The paper's methods without rows, per table and protocol, and the command to run them."""
    cells = compared[compared["in_paper"]]
    titles = {name: table.title for name, table in paper.tables().items()}
    several = cells.groupby("table")["known"].nunique() > 1
    lines = []
    for key, group in cells.groupby(["table", "known", "protocol"], sort=False):
        name, known, protocol = map(str, key)
        title = f"{titles[name]}, {names.dataset(known)}" if several[name] else titles[name]
        for (runnable, part), labels in _missing(group, results).items():
            command = _command(group, protocol, known, labels, results) if runnable else ""
            methods = ", ".join(map(names.method, labels)) + (f" ({part} only)" if part else "")
            short = protocol.removeprefix(f"{known}-")
            missing = "none: no method or experiment covers it yet"
            lines.append([title, short, methods, f"`{command}`" if command else missing])
    return markdown(["table", "protocol", "methods", "command"], lines, left=4) if lines else ""


def _missing(group: DataFrame, results: Results) -> dict[tuple[bool, str], list[str]]:
    """Methods without rows by whether the catalogue has them, and by the datasets that are missing."""
    found: dict[tuple[bool, str], list[str]] = {}
    for label, cells in group.groupby("label", sort=False):
        lost = cells[~cells["ran"]]
        if not lost.empty:
            part = (
                ""
                if len(lost) == len(cells)
                else ", ".join(map(names.dataset, lost["data"].unique()))
            )
            found.setdefault((label in results.catalogue.methods, part), []).append(str(label))
    return found


def _command(
    group: DataFrame, protocol: str, known: str, labels: list[str], results: Results
) -> str:
    data = {each.partition("/")[0] for each in group["data"]}
    listed = list(group["label"].unique())
    found = specs.table_command(results.catalogue, protocol, known, data, listed)
    return specs.command(*found, ",".join(labels)) if found else ""
