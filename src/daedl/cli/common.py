"""Options and error reporting shared by the commands."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer

from daedl.cli.results import printable
from daedl.data import DataWarning

Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, metavar="N", help="CPU threads; default: PyTorch's choice."),
]


@contextmanager
def using_threads(number: int | None) -> Iterator[None]:
    """Sets the number of torch's threads within the context; None keeps the current number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def report_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Prints errors of these kinds as one line, without a traceback, and exits with status 1."""
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
    """Prints each DataWarning once, as one line without the location in the code."""
    with warnings.catch_warnings():
        default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, DataWarning):
                typer.secho(f"Warning: {printable(str(message))}", fg="yellow", err=True)
            else:
                default(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        warnings.simplefilter("default", DataWarning)
        yield
