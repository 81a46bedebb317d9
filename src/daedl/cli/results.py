"""How a command gives its results: a table for people, JSON or CSV for programs; printed or in a file."""

import csv
import errno
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from daedl.storage import require_writable, write_atomically

DASH = "–"
# Wider than any table: none is cut to the width of a terminal, or of a file, which has none.
WIDE = 10_000

Record = Mapping[str, Any]


class Format(StrEnum):
    """For people, or for programs."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormatOption = Annotated[Format, typer.Option("--format", help="What to print.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="File to write instead of printing.")]


def require_place(path: Path, option: str = "--out", model: Path | None = None) -> None:
    """Raise if the file `path`, which `option` names, can't be written: found out before time is spent.

    Nor may it be written over the file of the `model` that is read.
    """
    if model is not None and path.exists() and model.exists() and path.samefile(model):
        raise ValueError(
            f"{path} is the model itself; expected another file: choose one with {option}"
        )
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        require_writable(path.parent)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(
            error.errno,
            f"cannot write {path}: {reason}; expected a file in a folder that exists and may be "
            f"written to: choose another with {option}",
        ) from error


def write_records(records: Sequence[Record], table: Table, form: Format, out: Path | None) -> None:
    """Print the results, or write them to the file `out`, all at once."""
    match form:
        case Format.JSON:
            plain = [_without_nan(record) for record in records]
            text = json.dumps(plain, indent=2, allow_nan=False) + "\n"
        case Format.CSV:
            text = _csv(records)
        case Format.TABLE:
            text = _text(table)
    # Bytes: a file's name need not be text, nor a terminal's encoding know every character.
    data = text.encode("utf-8", "surrogateescape")
    if out is None:
        typer.echo(data, nl=False)
    else:
        write_atomically(out, data)


def make_table(head: Sequence[str], lines: Sequence[Sequence[Any]], texts: int = 1) -> Table:
    """A table with these column heads; the first `texts` columns are text, the others numbers.

    None stays empty.
    """
    table = Table(box=box.SIMPLE)
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < texts else "right", no_wrap=True)
    for line in lines:
        # Text: what stands in brackets, as it may in a file's name, would be taken for a style.
        table.add_row(*(Text(_cell(value)) for value in line))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return DASH
    # Four places in line, unless they would be zeros.
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.2g}"


def _text(table: Table) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=WIDE).print(table)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def _csv(records: Sequence[Record]) -> str:
    """A line for each record, with what is a single value."""
    names = [name for name, value in records[0].items() if not isinstance(value, Mapping)]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_without_nan(record) for record in records)
    return buffer.getvalue()


def _without_nan(record: Record) -> dict[str, Any]:
    """JSON has no NaN, and in a CSV file it would be text."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
