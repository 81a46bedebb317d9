"""Time to import the library and to show its help, each beside its reference in fresh processes."""

import subprocess
import sys
from functools import partial
from typing import Annotated

import typer

from daedl_bench.options import RESULTS, ResultsFolder
from daedl_bench.studies._machine import Limited, best_times, compared, conclude

app = typer.Typer()

# A reference, what is compared with it, and the limit: a ratio, or seconds beyond the reference.
LIBRARY = ("import torch", "from daedl import Classifier, Prediction, fit, methods, metrics")
HELP = (
    "import typer",
    "import sys; sys.argv = ['daedl', '--help']; from daedl.cli import app; app()",
)


@app.command()
def measure(
    rounds: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 5,
    folder: ResultsFolder = RESULTS,
) -> None:
    """Time imports and help; append the rows to speed.jsonl."""
    scripts = dict.fromkeys((*LIBRARY, *HELP))
    times = best_times({script: partial(_run, script) for script in scripts}, rounds)
    (torch, library), (plain, shown) = LIBRARY, HELP
    beyond = times[shown] - times[plain]
    conclude(
        "Imports",
        [
            compared("import: daedl / torch", library, times[library], times[torch], 1.6),
            Limited("daedl --help, beyond import typer", "fresh process", "s", beyond, 1.0),
        ],
        folder / "speed.jsonl",
    )


def _run(script: str) -> None:
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
