"""`daedl bench`: the paper's experiments."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from daedl.cli.common import (
    Threads,
    report_errors,
    report_warnings,
    using_threads,
)
from daedl.cli.memory import keep_freed_memory
from daedl.demo.training import Progress
from daedl.storage import expanded, require_folder
from daedl_bench import cli_data, datasets, estimate, report, runner, spec, two_moons
from daedl_bench.cli_data import DataRoot
from daedl_bench.store import Store

app = typer.Typer(no_args_is_help=True, help="The paper's experiments.")
app.add_typer(cli_data.app, name="data")


@app.command("list")
def list_experiments(
    threads: Threads = None,
    plain: Annotated[bool, typer.Option("--no-times", help="Don't estimate times.")] = False,
) -> None:
    """Say which experiments there are, and about how long one seed trains on this machine at most.

    A few training steps of the first method are timed, and stand for those of the others; methods that
    share a training count once. Early stopping takes less; predictions come on top.
    """
    catalogue, console = spec.catalogue(), Console()
    seconds: dict[str, float] = {}  # of an epoch
    # Names are to be typed: they are never cut, whatever the width.
    name = Column("experiment", no_wrap=True, overflow="ignore")
    table = Table(name, Column("what", overflow="fold"), box=box.SIMPLE, show_lines=True)
    with using_threads(threads), console.status("timing a few training steps"):
        for each in catalogue.experiments.values():
            times = []
            if each.kind == "moons" and not plain:
                times.append(estimate.told(estimate.moons(two_moons.settings_of(catalogue))))
            for short, protocol in each.protocols.items():
                if plain:
                    times.append(short)
                    continue
                if protocol.name not in seconds:
                    method = catalogue.method(each.methods[0], protocol).training_method()
                    seconds[protocol.name] = estimate.an_epoch(protocol, method)
                most = seconds[protocol.name] * estimate.epochs(catalogue, each, protocol)
                times.append(f"{short}: {estimate.told(most)}")
            told = {
                "methods": ", ".join(each.methods),
                "against": ", ".join(each.units[1:]),
                "protocols" if plain else "training a seed takes at most about": ", ".join(times),
            }
            lines = [f"{key}: {value}" for key, value in told.items() if value]
            table.add_row(each.name, "\n".join([each.title, *lines]))
    console.print(table)


@app.command("run")
def run_experiment(
    name: Annotated[str, typer.Argument(help="An experiment of `daedl bench list`.")],
    methods: Annotated[
        str | None, typer.Option(help="Some of its methods, with commas between; by default all.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="As in 0, 0-4 or 0,2,5.")] = "0",
    protocol: Annotated[
        str | None, typer.Option(help="How to train; by default the first of `daedl bench list`.")
    ] = None,
    data: DataRoot = None,
    results: Annotated[
        Path, typer.Option(help="Folder for the rows, one file an experiment.")
    ] = Path("benchmarks/results"),
    cache: Annotated[
        Path | None, typer.Option(help="Folder for trained networks and their outputs.")
    ] = None,
    networks: Annotated[
        bool,
        typer.Option(
            "--networks",
            help="Also train networks that the cache lacks although their rows exist, as a report "
            "draws its curves from them.",
        ),
    ] = False,
    threads: Threads = None,
) -> None:
    """Train what isn't trained yet, measure what isn't measured yet, and append the rows."""
    keep_freed_memory()
    with report_errors(OSError, ValueError), report_warnings(), using_threads(threads):
        chosen, catalogue = _seeds(seeds), spec.catalogue()
        labels = [each.strip() for each in methods.split(",")] if methods else None
        # Before folders are made for it.
        experiment = catalogue.experiment(name)
        if protocol is not None:
            experiment.protocol(protocol)
        for label in labels or ():
            catalogue.method(label)
        rows = results / f"{name}.jsonl"
        require_folder(results, "choose another with --results")
        failures = runner.run(
            catalogue,
            name,
            load=partial(datasets.load, root=data),
            store=Store(expanded(cache or datasets.data_root(data) / "runs")),
            results=rows,
            protocol=protocol,
            methods=labels,
            seeds=chosen,
            networks=networks,
            progress=Progress(),
        )
    for failure in failures:
        typer.secho(f"failed: {failure}", fg="red", err=True)
    typer.echo(f"rows are in {rows}" if rows.exists() else "nothing was measured")
    if failures:
        raise typer.Exit(1)


@app.command("report")
def write_report(
    results: Annotated[
        Path, typer.Option(help="Folder with the rows that `daedl bench run` wrote.")
    ] = Path("benchmarks/results"),
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder with trained networks, for pictures; none is trained."),
    ] = None,
    data: DataRoot = None,
    out: Annotated[Path, typer.Option(help="Folder for the report; made if need be.")] = Path(
        "report"
    ),
    threads: Threads = None,
) -> None:
    """Write report.md and report.html: the paper's tables beside what was measured, and pictures."""
    with report_errors(OSError, ValueError), report_warnings(), using_threads(threads):
        path = report.write(
            results,
            out,
            catalogue=spec.catalogue(),
            cache=expanded(cache or datasets.data_root(data) / "runs"),
            load=partial(datasets.load, root=data, download=False),
        )
    typer.echo(f"the report is at {path}")


def _seeds(text: str) -> list[int]:
    """Seeds from "0-4" or "0,2,5"."""
    try:
        spans = [part.partition("-") for part in text.split(",")]
        found = [range(int(a), int(b or a) + 1) for a, _, b in spans]
        if not all(found):
            raise ValueError("a span is empty")
        return [seed for span in found for seed in span]
    except ValueError as error:
        raise ValueError(f"seeds are {text!r}; expected numbers as in 0, 0-4 or 0,2,5") from error
