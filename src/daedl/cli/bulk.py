"""`daedl predict --out scores.parquet`: any number of images or rows, with any engine."""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from daedl import engines
from daedl.bulk import Labelled, Rows, choose_column, find_parts, predict_files
from daedl.bulk.parts import PART, SUFFIX
from daedl.classifier import Classifier
from daedl.cli.common import select_device
from daedl.cli.images import class_names, read_known, require_preprocess
from daedl.cli.results import printable
from daedl.data import Labelled as LabelledData
from daedl.data import Preprocess
from daedl.data.read import list_for
from daedl.engines import LOCAL, RAY, connect
from daedl.scorer import Scorer
from daedl.storage import expand_user

EngineOption = Annotated[
    engines.Name,
    typer.Option(
        "--engine",
        help="local: this process. ray: all cores of the cluster that RAY_ADDRESS names, or of this machine "
        "(extra ray).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, metavar="N", help="Cores that ray uses on this machine."),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME",
        help="Column of Parquet files with the inputs; several are joined to vectors.",
    ),
]
# Seconds between lines of progress where the output is no terminal (chosen).
INTERVAL = 30.0


def is_bulk(sources: Sequence[str], out: Path | None, engine: str) -> bool:
    """Whether the results are Parquet files; raises if inputs or engine need that, and they are not."""
    if out is not None and out.suffix == SUFFIX:
        return True
    if engine == RAY or any(Path(each).suffix == SUFFIX for each in sources):
        raise ValueError(
            f"--out is {out}; expected a folder of Parquet files for Parquet inputs or --engine ray: pass "
            "--out scores.parquet"
        )
    return False


def predict_bulk(
    model: Path,
    sources: Sequence[str],
    out: Path,
    *,
    engine: str,
    workers: int | None,
    column: Sequence[str] | None,
    keep: Sequence[str] | None,
    skip_broken: bool,
    device: str,
) -> None:
    """Predict with `daedl.bulk.predict_files`, show progress, and report inputs without predictions."""
    place = select_device(device)
    with connect(engine, workers, gpus=int(place.type == "cuda")) as connected:
        scored = predict_files(
            model,
            sources,
            out,
            engine=connected,
            column=_single(column),
            keep=keep or (),
            progress=show_rows,
            device=str(place),
        )
    kept = f", of which an earlier run had finished {scored.kept} parts" if scored.kept else ""
    broken = f"; {scored.broken} can't be read, see the column error" if scored.broken else ""
    typer.echo(printable(f"Wrote {scored.rows} predictions to {out}{kept}{broken}"), err=True)
    if scored.broken and not skip_broken:
        raise typer.Exit(1)


def labelled_parts(
    model: Path,
    classifier: Classifier,
    data: str,
    columns: Sequence[str] | None,
    label: str,
    engine: str,
) -> list[Any]:
    """Labelled parts of Parquet files, or of images for an engine; none for images in one process."""
    source = expand_user(data)
    if source.suffix == SUFFIX or any(source.glob(f"*{SUFFIX}")):
        parts = find_parts([source])
        scorer = Scorer(model, column=choose_column(parts, _single(columns), [label]))
        return [Labelled(part, scorer, label) for part in parts if isinstance(part, Rows)]
    if engine == LOCAL:
        return []
    kind = require_preprocess(classifier)
    samples: LabelledData = (
        list_for(source, kind, class_names(classifier))
        if source.is_dir() and isinstance(kind, Preprocess)
        else read_known(data, classifier)
    )
    order = torch.arange(len(samples))
    return [samples.subset(indices) for indices in torch.split(order, PART)]


def _single(columns: Sequence[str] | None) -> str | Sequence[str] | None:
    """One name as text, as `Scorer` expects it."""
    return columns[0] if columns and len(columns) == 1 else columns or None


def show_rows(counts: Iterator[int], total: int, done: int) -> Iterable[int]:
    """Yields `counts` and shows their sum: a bar on a terminal, otherwise a line per `INTERVAL`."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("", total=total, completed=done)
            for count in counts:
                progress.advance(bar, count)
                yield count
        return
    started = last = time.perf_counter()
    first = done
    for count in counts:
        done, now = done + count, time.perf_counter()
        if now - last >= INTERVAL:
            left = (now - started) / (done - first) * (total - done)
            typer.echo(f"{done} of {total} rows, {left:.0f} s left", err=True)
            last = now
        yield count
