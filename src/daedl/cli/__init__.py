"""The command line. Each command is a module of this package, imported when it runs."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

# Commands with their summaries, which help shows without importing torch.
COMMANDS = {
    "train": "Train a classifier on a folder of images, or on texts.",
    "evaluate": "Measure accuracy, calibration and OOD detection.",
    "calibrate": "Choose which predictions to accept, on held-out images.",
    "refit": "Fit the density again with other settings, without training.",
    "info": "Describe a model: method, training data, density, thresholds.",
    "predict": "Predict classes and uncertainties of images or texts.",
    "export": "Write a model as one ONNX or torch.export graph.",
    "serve": "Serve a model over HTTP, with a web page.",
    "demo": "Train three methods on two moons and digits; write a report.",
}

# Help as plain text: in 80 columns, rich's boxes leave half of a line for the descriptions.
OPTIONS: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command runs, not to list it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that has a summary only, for help; `resolve_command` returns the real one."""
        del ctx
        summary = COMMANDS.get(cmd_name)
        return None if summary is None else TyperCommand(cmd_name, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is run; suggest names for an unknown one."""
        if args[0] in COMMANDS:
            return args[0], _load(args[0]), args[1:]
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    from daedl.cli.command import with_shared_options  # noqa: PLC0415 (imports torch, as commands do)

    single = typer.Typer(**OPTIONS, add_completion=False)
    command = getattr(import_module(f"daedl.cli.{name}"), name)
    single.command(name)(with_shared_options(command))
    return typer.main.get_command(single)


app = typer.Typer(
    **OPTIONS,
    cls=LazyGroup,
    no_args_is_help=True,
    help="Density aware evidential deep learning: a classifier that knows when it doesn't know.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from daedl import __version__  # noqa: PLC0415

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
