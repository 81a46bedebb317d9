"""The panel: DAEDL without settings, softmax, and scores of the softmax network, on many kinds of data.

Rows are appended to panel.jsonl as they are measured; rows that exist are not measured again. A row is
identified by case, method, seed, and the defaults of the method, of `DAEDLClassifier` and of `daedl train`.
"""

import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import torch
import typer

from daedl.density import DensityWarning
from daedl.names import look_up
from daedl_bench import options, results
from daedl_bench.studies.panel.measure import METHODS, key, measure_case
from daedl_bench.studies.panel.verdict import CASES, EXPERIMENT

FILE = "panel.jsonl"
app = typer.Typer()


def run(path: Path, case: str, names: Sequence[str], seed: int, data: Path | None) -> None:
    """Append missing rows of the methods `names` to the file `path`."""
    done = {row.spec for row in results.load(path)}
    wanted = [method for method in names if key(case, method, seed) not in done]
    import_module("lightning_fabric")  # takes seconds, which would count as the first training
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DensityWarning)  # the figures show it
        for method, figures in measure_case(CASES[case], seed, wanted, data):
            named = {"experiment": EXPERIMENT, "method": method, "protocol": case}
            results.record(path, figures, seed=seed, spec=key(case, method, seed), **named)
            typer.echo(f"{case}, seed {seed}, {method}")


@app.command(help=__doc__)
def main(
    data: options.DataRoot = None,
    folder: options.ResultsFolder = options.RESULTS,
    only: Annotated[
        str, typer.Option(help=f"Cases, separated by commas, of {', '.join(CASES)}.")
    ] = "",
    seeds: options.Seeds = "0-2",
    labels: Annotated[
        str, typer.Option("--methods", help="Methods, separated by commas.")
    ] = ",".join(METHODS),
) -> None:
    torch.set_num_threads(1)
    chosen = options.names(only) or list(CASES)
    for case in chosen:
        look_up(CASES, case, "case of the panel")
    for label in options.names(labels):
        look_up(dict.fromkeys(METHODS), label, "method of the panel")
    for case in chosen:
        for seed in options.seed_list(seeds):
            run(folder / FILE, case, options.names(labels), seed, data)
