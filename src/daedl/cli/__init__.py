"""The command line."""

from pathlib import Path
from typing import Annotated

import typer

from daedl import __version__
from daedl.cli import (
    calibrate,
    evaluate,
    export,
    predict,
    serve,
    train,
)
from daedl.cli.common import report_errors, using_threads

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Density aware evidential deep learning: a classifier that knows when it doesn't know.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"daedl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Density aware evidential deep learning: a classifier that knows when it doesn't know."""


app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("calibrate")(calibrate.calibrate)
app.command("predict")(predict.predict)
app.command("export")(export.export)
app.command("serve")(serve.serve)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report; made if need be.")] = Path(
        "demo"
    ),
    # scikit-learn takes seeds below 2**32; the last one is seed + seeds - 1.
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="First seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=2, max=1000, help="Number of seeds for digits.")] = 3,
    # The networks are too small to gain from more threads, and on a busy machine threads that wait
    # for each other made the demo five times slower.
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train for two epochs, to check that everything runs.")
    ] = False,
) -> None:
    """Train softmax, EDL and DAEDL on two moons and on digits, and write a report with figures."""
    with report_errors(OSError), using_threads(threads):
        from daedl.demo.run import run  # noqa: PLC0415 (matplotlib takes a second)

        run(out, seed, seeds, quick)
