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
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides every draw.")] = 0,
    # These networks are too small to gain from more, and threads that wait for each other on a busy
    # machine made the demo five times as slow.
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two epochs only: see that it runs, not what it can do.")
    ] = False,
) -> None:
    """Train softmax, EDL and DAEDL on two moons and on digits, and write a report with pictures."""
    with report_errors(OSError), using_threads(threads):
        from daedl.demo.run import run  # noqa: PLC0415 (matplotlib takes a second)

        run(out, seed, quick)
