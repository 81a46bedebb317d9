"""Studies: measurements other than the experiments, one module each.

A module of this package without a leading underscore is a study if it has a typer app called `app`. It
is imported when it is run, as `python -m daedl_bench study NAME`.
"""

import pkgutil
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


class Studies(TyperGroup):
    """A group of commands with one command per module of this package."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the modules."""
        del ctx
        modules = (each.name for each in pkgutil.iter_modules(__path__))
        return [name for name in modules if not name.startswith("_")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = typer.main.get_command(import_module(f"{__name__}.{cmd_name}").app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=Studies, no_args_is_help=True, help="Measurements other than the experiments."
)


@app.callback()
def _study() -> None:
    """Studies: measurements other than the experiments, and the pages that show them."""
