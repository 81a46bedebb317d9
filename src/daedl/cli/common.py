"""Options and error reporting shared by the commands."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import torch
import typer

from daedl.checks import NotFittedError
from daedl.cli.results import printable
from daedl.data import DataWarning

Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, metavar="N", help="CPU threads; default: PyTorch's choice."),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:1, mps; auto selects a GPU if there is one.",
        autocompletion=lambda: ["auto", "cpu", "cuda", "mps"],
    ),
]
Precision = Annotated[
    Literal["32-true", "bf16-mixed", "16-mixed"],
    typer.Option("--precision", metavar="NAME", help="32-true, bf16-mixed or 16-mixed (on a GPU)."),
]


def select_device(name: str) -> torch.device:
    """Returns the device of this name; raises if it is not available."""
    try:
        if name == "auto":
            present = torch.accelerator.is_available() and torch.accelerator.current_accelerator()
            return present or torch.device("cpu")
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"--device is {name}, which can't be used ({reason}); expected an available device: pass "
            "--device cpu, or auto"
        ) from error
    return device


def fabric_device(name: str) -> dict[str, Any]:
    """Returns the options of `daedl.fit` that select the device of this name."""
    device = select_device(name)
    if name == "auto" or device.type == "cpu" or device.index is None:
        return {"accelerator": name if name == "auto" else device.type}
    return {"accelerator": device.type, "devices": [device.index]}


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
    """Prints errors of these kinds as one line, without a traceback, and exits with status 1.

    By default all kinds that users can cause.
    """
    kinds = kinds or (OSError, ValueError, ImportError, NotFittedError)
    try:
        yield
    except kinds as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        typer.secho(f"Error: {printable(text)}", fg="red", err=True)
        raise typer.Exit(1) from error


@contextmanager
def report_warnings(*kinds: type[Warning]) -> Iterator[None]:
    """Prints each DataWarning, and each warning of `kinds`, once and without the location in the code."""
    with warnings.catch_warnings():
        default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, (DataWarning, *kinds)):
                typer.secho(f"Warning: {printable(str(message))}", fg="yellow", err=True)
            else:
                default(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        warnings.simplefilter("default", DataWarning)
        yield
