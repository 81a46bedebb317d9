"""Options and error handling of all commands: --threads, --config, and errors as one line."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.config import apply

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=apply,
        is_eager=True,  # before the options whose defaults it changes
        metavar="FILE",
        help="TOML file with values of these options; the command line takes precedence.",
    ),
]
SHARED = {"threads": Threads, "config": ConfigFile}


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Returns `command` with the `SHARED` options that it doesn't define itself; reports its errors."""
    own = inspect.signature(command)
    added = {name: hint for name, hint in SHARED.items() if name not in own.parameters}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        shared = {name: values.pop(name) for name in added}
        with report_errors(), using_threads(shared.get("threads")):
            command(**values)

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in added.items()
    ]
    parameters = [*own.parameters.values(), *options]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **added}
    return run
