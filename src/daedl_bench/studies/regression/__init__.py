"""Regression: the UCI sets with their official splits, OOD inputs, and calibration, for every method.

Rows are appended to regression.jsonl as they are measured; rows that exist are not measured again. A row is
identified by set, split, method with its settings, and candidates of hyperparameters.
"""

import time
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from daedl.cli.common import using_threads
from daedl.methods import regression
from daedl_bench import datasets, options, results
from daedl_bench.studies.regression.data import SETS, num_splits
from daedl_bench.studies.regression.measure import Split, key, measure
from daedl_bench.studies.regression.speed import ratios

FILE, EXPERIMENT, SPEED = "regression.jsonl", "regression", "regression_speed.jsonl"
# Of the measurement: this library's method first, those that take longest last.
LAST = ("gaussian-ensemble", "natpn-normal")
ORDER = sorted(regression.METHODS, key=lambda name: (name in LAST, name != "daer"))
app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.callback()
def _regression() -> None:
    """Regression on the UCI sets."""


@app.command("measure")
def measure_all(
    sets: Annotated[str, typer.Option(help="Names separated by commas.")] = ",".join(SETS),
    methods: Annotated[str, typer.Option(help="Names separated by commas.")] = "",
    splits: Annotated[
        str, typer.Option(help="As in 0-4; splits that a set lacks are skipped.")
    ] = "0-19",
    data: options.DataRoot = None,
    folder: options.ResultsFolder = options.RESULTS,
) -> None:
    """Append the figures of each set and method, split after split and method after method."""
    first, _, last = splits.partition("-")
    root, path = datasets.data_root(data), folder / FILE
    done = {row.spec for row in results.load(path)}
    names = methods.split(",") if methods else ORDER
    import_module("lightning_fabric")  # takes seconds, which would count as the first training
    with using_threads(1):
        # Split after split, so that an interrupted study has figures of every set.
        for number, method, name in product(
            range(int(first), int(last or first) + 1), names, sets.split(",")
        ):
            if number < num_splits(root, name) and key(name, number, method) not in done:
                _append(path, Split(root, name, number), method)


@app.command("speed")
def measure_speed(folder: options.ResultsFolder = options.RESULTS) -> None:
    """Append the time of a prediction relative to the bare network."""
    with using_threads(1):
        found = list(ratios())
        results.record(folder / SPEED, found, experiment="regression-speed", method="daer", seed=0)
    for name, ratio in found:
        typer.echo(f"{name}: {ratio.value:.3f}")


def _append(path: Path, place: Split, method: str) -> None:
    started = time.perf_counter()
    figures = list(measure(place, method))
    seconds = time.perf_counter() - started
    rows = results.rows(
        figures,
        experiment=EXPERIMENT,
        method=method,
        data=place.name,
        seed=place.number,
        seconds=seconds,
        spec=key(place.name, place.number, method),
        protocol="uci",
    )
    results.append(path, rows)
    typer.echo(f"{place.name}, split {place.number}, {method}: {seconds:.1f} s")
