"""`python -m daedl_bench`: the paper's experiments, their datasets, report and studies."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from daedl.cli.bulk import EngineOption, Workers
from daedl.cli.common import Threads, report_errors, report_warnings, using_threads
from daedl.cli.memory import keep_freed_memory
from daedl.demo.training import Progress
from daedl.engines import LOCAL
from daedl.storage import require_folder
from daedl_bench import cli_data, datasets, estimate, report, robustness, runner, spec, studies
from daedl_bench.options import (
    RESULTS,
    CacheFolder,
    DataRoot,
    ResultsFolder,
    Seeds,
    cache_folder,
    names,
    seed_list,
    workspace,
)

app = typer.Typer(no_args_is_help=True, help="The paper's experiments.")
app.add_typer(cli_data.app, name="data")
app.add_typer(studies.app, name="study")


@app.command("list")
def list_experiments(
    threads: Threads = None,
    plain: Annotated[bool, typer.Option("--no-times", help="Don't estimate times.")] = False,
) -> None:
    """List the experiments, and an upper bound of the training time of one seed on this machine.

    A few training steps of the first method are timed and used for all methods; methods that share a
    training count once. Early stopping takes less; predictions take additional time.
    """
    catalogue, console = spec.catalogue(), Console()
    # Names are typed by users, so they are never truncated.
    name = Column("experiment", no_wrap=True, overflow="ignore")
    table = Table(name, Column("what", overflow="fold"), box=box.SIMPLE, show_lines=True)
    with using_threads(threads), console.status("timing a few training steps"):
        times = {} if plain else estimate.times(catalogue)
        for each in catalogue.experiments.values():
            facts = {
                "methods": ", ".join(each.methods),
                "against": ", ".join(each.units[1:]),
                "protocols" if plain else "one seed trains at most about": ", ".join(
                    times.get(each.name, each.protocols)
                ),
            }
            lines = [f"{key}: {value}" for key, value in facts.items() if value]
            table.add_row(each.name, "\n".join([each.title, *lines]))
    console.print(table)


@app.command("run")
def run_experiment(
    name: Annotated[str, typer.Argument(help="An experiment of `list`.")],
    methods: Annotated[
        str, typer.Option(help="Some of its methods, separated by commas; by default all.")
    ] = "",
    seeds: Seeds = "0",
    protocol: Annotated[
        str | None, typer.Option(help="How to train; by default the first one of `list`.")
    ] = None,
    data: DataRoot = None,
    results: ResultsFolder = RESULTS,
    cache: CacheFolder = None,
    networks: Annotated[
        bool,
        typer.Option(
            "--networks",
            help="Also train networks that the cache lacks although their rows exist: a report draws "
            "its curves from them.",
        ),
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, help="Minutes per training; by default the number of epochs is the protocol's."
        ),
    ] = None,
    engine: EngineOption = LOCAL,
    workers: Workers = None,
    threads: Threads = None,
) -> None:
    """Train and measure what is missing, and append the rows; resumes after an interruption."""
    keep_freed_memory()
    with report_errors(OSError, ValueError), report_warnings(), using_threads(threads):
        chosen, labels, catalogue = seed_list(seeds), names(methods), spec.catalogue()
        # Validated before folders are created.
        experiment = catalogue.experiment(name)
        if protocol is not None:
            experiment.protocol(protocol)
        for label in labels:
            catalogue.method(label)
        rows = results / f"{name}.jsonl"
        require_folder(results, "choose another with --results")
        failures = runner.run(
            catalogue,
            name,
            workspace(data, cache, Progress()),
            rows,
            protocol=protocol,
            methods=labels,
            seeds=chosen,
            networks=networks,
            budget=budget,
            engine=engine,
            workers=workers,
        )
    for failure in failures:
        typer.secho(f"failed: {failure}", fg="red", err=True)
    typer.echo(f"rows are in {rows}" if rows.exists() else "nothing was measured")
    if failures:
        raise typer.Exit(1)


@app.command("report")
def write_report(
    results: ResultsFolder = RESULTS,
    cache: CacheFolder = None,
    data: DataRoot = None,
    out: Annotated[Path, typer.Option(help="Folder for the report; created if missing.")] = Path(
        "report"
    ),
    threads: Threads = None,
) -> None:
    """Write report.md and report.html: the paper's tables compared with the measured ones, and figures."""
    with report_errors(OSError, ValueError), report_warnings(), using_threads(threads):
        path = report.write(
            results,
            out,
            catalogue=spec.catalogue(),
            cache=cache_folder(data, cache),
            load=partial(datasets.load, root=data, download=False),
        )
    typer.echo(f"the report is at {path}")


@app.command("robustness")
def run_campaign(
    only: Annotated[
        str, typer.Option(help="Some of the parts, separated by commas; by default all.")
    ] = "",
    scale: Annotated[
        float, typer.Option(min=0, help="Share of the attempts; 1 takes about ten minutes.")
    ] = 1.0,
    results: ResultsFolder = RESULTS,
) -> None:
    """Kill, fuzz and overload what is installed, and append the figures to robustness.jsonl; Linux only."""
    with report_errors(OSError, ValueError):
        require_folder(results, "choose another with --results")
        met = robustness.run(names(only), scale, results / "robustness.jsonl")
    raise typer.Exit(0 if met else 1)
