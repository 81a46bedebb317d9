"""Writes the tables of the documentation from rows, methods and corruptions.

A table stands below a comment with its name, as in `<!-- rows: every-method -->`; a run of sections, which
begins with a heading, ends at `<!-- end -->`. A test compares the pages with the rows.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import typer

from daedl.storage import write_atomically
from daedl_bench import methods_page
from daedl_bench.corruptions import FAMILIES
from daedl_bench.corruptions.page import table as corruptions
from daedl_bench.options import RESULTS, ResultsFolder
from daedl_bench.robustness._table import table as robustness
from daedl_bench.spec import catalogue
from daedl_bench.studies import (
    _cifar_tables,
    _mnist_tables,
    digits,
    intents,
    losses,
    many_classes,
    normalization,
)
from daedl_bench.studies.panel import verdict
from daedl_bench.studies.regression import goals as regression_goals
from daedl_bench.studies.regression import tables as regression_tables
from daedl_bench.summary import Results

# Pages with tables, from the root of the repository.
PAGES = (
    "README.md",
    "docs/results.md",
    "docs/experiments.md",
    "docs/say_i_dont_know.md",
    "docs/text.md",
    "docs/methods.md",
    "docs/corruptions.md",
    "docs/robustness.md",
    "docs/regression.md",
    "benchmarks/results/findings.md",
    "models/README.md",
)
MARKED = re.compile(
    r"(<!-- rows: ([a-z0-9-]+) -->\n\n)((?:\|[^\n]*\n)+|## .*?(?=<!-- end))", re.DOTALL
)


def _without_rows(table: Callable[..., str], *arguments: object) -> Callable[[Results], str]:
    return lambda _: table(*arguments)


TABLES: Mapping[str, Callable[[Results], str]] = MappingProxyType(
    {
        **digits.TABLES,
        **_mnist_tables.TABLES,
        **_cifar_tables.TABLES,
        **intents.TABLES,
        **{name: _without_rows(corruptions, family) for name, family in FAMILIES.items()},
        "methods": _without_rows(methods_page.table),
        "method-sections": _without_rows(methods_page.sections),
        "robustness": _without_rows(robustness),
        **regression_tables.TABLES,
        "regression-goals": regression_goals.goals,
        "many-classes": many_classes.table,
        **normalization.TABLES,
        **losses.TABLES,
        "panel": verdict.panel,
        "panel-photos": verdict.panel_photos,
        "panel-goals": verdict.panel_goals,
        "panel-accepted": verdict.panel_accepted,
        "panel-tempering": verdict.panel_tempering,
    }
)
app = typer.Typer()


def written(page: str, results: Results) -> str:
    """The page with its tables as the rows are now."""

    def table(match: re.Match[str]) -> str:
        mark, name, _ = match.groups()
        return f"{mark}{TABLES[name](results)}\n"

    return MARKED.sub(table, page)


@app.command()
def main(folder: ResultsFolder = RESULTS, root: Path = Path()) -> None:
    """Write the tables of every page."""
    results = Results.load(folder, catalogue())
    for name in PAGES:
        path = root / name
        write_atomically(path, written(path.read_text("utf-8"), results).encode())
