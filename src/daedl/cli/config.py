"""`--config FILE`: options of a command from a TOML file, and the file that `daedl train` writes."""

import json
import tomllib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from daedl.cli.common import report_errors
from daedl.names import look_up
from daedl.storage import expand_user

# First line of the files that `daedl train` writes; only these are replaced without --force.
HEADER = "# Options of `daedl train`; repeat with --config and another --out, in the same folder."
# Options that concern the file to write rather than the model.
NOT_STORED = ("out", "resume", "force", "config")


def dump(ctx: typer.Context) -> bytes:
    """Returns the values of all options of the running command, as a file for --config."""
    lines = [HEADER]
    for parameter in ctx.command.params:
        name, value = _name(parameter.opts[0]), ctx.params.get(str(parameter.name))
        if name not in NOT_STORED and value not in (None, (), []):
            lines.append(f"{name} = {_as_toml(value)}")
    # File names may be invalid UTF-8.
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def config_path(model: Path, force: bool) -> Path:
    """Returns the configuration file of a model; raises if it would replace another file."""
    path = model.with_suffix(".toml")
    if path.exists() and not force and not path.read_bytes().startswith(HEADER.encode()):
        raise FileExistsError(
            f"{path} already exists and was not written by daedl train, which writes its options there; "
            "expected no such file: choose another model file with --out, or pass --force to overwrite it"
        )
    return path


def apply(ctx: typer.Context, value: Path | None) -> None:
    """Makes the values in the file the defaults of the command's options."""
    if value is not None and not ctx.resilient_parsing:
        with report_errors():
            ctx.default_map = _read(expand_user(value), ctx.command.params)


def _read(path: Path, parameters: list[Any]) -> dict[str, Any]:
    """Returns the values in the file by the names of click's parameters."""
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{path} is not valid TOML ({error}); expected one option per line, such as epochs = 30: "
            "correct it"
        ) from error
    known = {
        _name(option): parameter
        for parameter in parameters
        for option in (*parameter.opts, *parameter.secondary_opts)
        if _name(option) != "config"
    }
    return dict(
        _entry(path, name.replace("_", "-"), value, known) for name, value in values.items()
    )


def _entry(path: Path, name: str, value: Any, known: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the parameter and its value as typed on the command line, which click then validates."""
    parameter = look_up(known, name, f"option in {path}")
    values = value if isinstance(value, list) else [value]
    several = getattr(parameter, "multiple", False) or parameter.nargs != 1
    flag = getattr(parameter, "is_flag", False)
    simple = all(isinstance(each, str | int | float) for each in values)
    if flag != isinstance(value, bool) or not simple or (isinstance(value, list) and not several):
        expected = "true or false" if flag else "a list of values" if several else "one value"
        raise ValueError(f"{name} is {value!r} in {path}; expected {expected}: correct the file")
    if flag:
        return parameter.name, value != (f"--{name}" in parameter.secondary_opts)
    return parameter.name, [str(each) for each in values] if several else str(value)


def _name(option: str) -> str:
    return option.lstrip("-")


def _as_toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, Enum):
        value = value.value
    # JSON's numbers, booleans and strings are TOML too, apart from DEL, which TOML requires to be escaped.
    text = json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")
