"""`daedl demo`: two moons and digits, with a report."""

from pathlib import Path
from typing import Annotated

import typer

from daedl.cli.common import using_threads
from daedl.demo import run


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report; created if missing.")] = Path(
        "demo"
    ),
    # scikit-learn takes seeds below 2**32; the last one is seed + seeds - 1.
    seed: Annotated[int, typer.Option(min=0, max=2**31, metavar="N", help="First seed.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=2, max=1000, metavar="N", help="Number of seeds for digits.")
    ] = 3,
    # The networks are too small to gain from more threads, and on a busy machine threads that wait
    # for each other made the demo five times slower.
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train for two epochs, to check that everything runs.")
    ] = False,
) -> None:
    """Train softmax, EDL and DAEDL on two moons and on digits, and write a report with figures."""
    with using_threads(threads):
        run.run(out, seed, seeds, quick)
