"""What the commands share: options, threads, and how errors are told."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer

from daedl.cli.results import printable
from daedl.data import DataWarning

TOLD = (DataWarning,)
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads of torch; by default as it chooses.")
]


@contextmanager
def using_threads(number: int | None) -> Iterator[None]:
    """Let torch use `number` threads while inside; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def report_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Tell errors of these kinds in a line, without a traceback, and exit with status 1."""
    try:
        yield
    except kinds as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        typer.secho(f"Error: {printable(text)}", fg="red", err=True)
        raise typer.Exit(1) from error


@contextmanager
def report_warnings() -> Iterator[None]:
    """Tell warnings about data and rows in a line each, once, without the place in the code."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, TOLD):
                typer.secho(f"Warning: {printable(str(message))}", fg="yellow", err=True)
            else:
                before(message, category, *where)

        warnings.showwarning = tell  # type: ignore[assignment]
        for kind in TOLD:
            warnings.simplefilter("default", kind)
        yield
