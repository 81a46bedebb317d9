"""The command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from daedl import __version__
from daedl.bench import data as datasets
from daedl.bench import demo as bench_demo
from daedl.bench import runner, spec
from daedl.bench.store import Store
from daedl.bench.trained import Progress

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


bench = typer.Typer(no_args_is_help=True, help="The paper's experiments.")
app.add_typer(bench, name="bench")

DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder with the data; by default DAEDL_DATA, or the cache folder."
    ),
]


@bench.command("list")
def list_experiments() -> None:
    """Say which experiments there are, under which protocol, and with which methods."""
    table = Table("experiment", "what", "protocol", "methods", "unknown sets")
    for each in spec.catalogue().experiments.values():
        cells = each.name, each.title, each.protocol.name, ", ".join(each.methods)
        table.add_row(*cells, ", ".join(each.ood))
    Console().print(table)


@bench.command("run")
def run_experiment(
    name: Annotated[str, typer.Argument(help="An experiment of `daedl bench list`.")],
    methods: Annotated[
        str | None, typer.Option(help="Some of its methods, with commas between; by default all.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="As in 0, 0-4 or 0,2,5.")] = "0",
    data: DataRoot = None,
    results: Annotated[
        Path, typer.Option(help="Folder for the rows, one file an experiment.")
    ] = Path("benchmarks/results"),
    cache: Annotated[
        Path | None, typer.Option(help="Folder for trained networks and their outputs.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 2,
) -> None:
    """Train what isn't trained yet, measure what isn't measured yet, and append the rows."""
    with _told_errors(OSError, ValueError), _threads(threads):
        chosen = _seeds(seeds)
        results.mkdir(parents=True, exist_ok=True)
        failures = runner.run(
            spec.catalogue(),
            name,
            load=partial(datasets.load, root=data),
            store=Store((cache or datasets.data_root(data) / "runs").expanduser()),
            results=results / f"{name}.jsonl",
            methods=methods.split(",") if methods else None,
            seeds=chosen,
            progress=Progress(),
        )
    for failure in failures:
        typer.secho(f"failed: {failure}", fg="red", err=True)
    typer.echo(f"rows are in {results / f'{name}.jsonl'}")
    if failures:
        raise typer.Exit(1)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Let torch use `number` threads while inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _told_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Tell errors of these kinds in a line, without a traceback, and exit with status 1."""
    try:
        yield
    except kinds as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        typer.secho(f"Error: {text}", fg="red", err=True)
        raise typer.Exit(1) from error


def _seeds(text: str) -> list[int]:
    """Seeds from "0-4" or "0,2,5"."""
    try:
        spans = [part.partition("-") for part in text.split(",")]
        return [s for a, _, b in spans for s in range(int(a), int(b or a) + 1)]
    except ValueError as error:
        raise ValueError(f"seeds are {text!r}; expected numbers as in 0, 0-4 or 0,2,5") from error


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
    with _told_errors(OSError), _threads(threads):
        bench_demo.run(out, seed, quick)
