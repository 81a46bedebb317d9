"""Digits of the demo over several seeds: appends the figures of each seed to digits.jsonl."""

import math
from typing import Annotated

import typer

from daedl.cli.common import using_threads
from daedl.demo import digits
from daedl.demo.table import summarize
from daedl.demo.training import Progress
from daedl.evaluate import Measured
from daedl_bench import names, results
from daedl_bench.options import RESULTS, ResultsFolder
from daedl_bench.studies.two_moons import rows_of
from daedl_bench.summary import Results

FILE, EXPERIMENT = "digits.jsonl", "digits"
# Those of "daedl-loo" are rows of the former defaults, by an earlier version.
METHODS = ("softmax", "edl", "daedl-loo", "daedl")
app = typer.Typer()


@app.command(help=__doc__)
def main(
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds; those with rows are skipped.")
    ] = 5,
    folder: ResultsFolder = RESULTS,
) -> None:
    path = folder / FILE
    done = {row.seed for row in results.load(path) if row.method == METHODS[-1]}
    with using_threads(1):
        for seed in sorted(set(range(seeds)) - done):
            result = digits.run(seed, progress=Progress())
            results.append(path, rows_of(result, experiment=EXPERIMENT))


def table(found: Results) -> str:
    """Mean ± standard deviation over seeds, times 100."""
    seeds: dict[int, dict[str, dict[str, list[Measured]]]] = {}
    for row in found.rows:
        if row.experiment == EXPERIMENT:
            value = math.nan if row.value is None else row.value
            methods = seeds.setdefault(row.seed, {name: {} for name in METHODS})
            figure = Measured(row.task, row.score, row.metric, value)
            methods[row.method].setdefault(row.data, []).append(figure)
    lines = summarize(list(seeds.values()))
    cells = [
        [line.question.text, line.question.name, *map(str, line.spreads.values())] for line in lines
    ]
    return names.markdown(["", "metric", *lines[0].spreads], cells)


TABLES = {"digits": table}
