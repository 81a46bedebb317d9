"""Output of results as a table, JSON or CSV, to the terminal or to a file.

Class names, names of targets and file names are untrusted text: tables and CSV escape control characters,
which could drive a terminal, and formatting ones, which could show another order; CSV marks cells that a
spreadsheet would evaluate as a formula. JSON is exact.
"""

import csv
import errno
import io
import json
import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from daedl.storage import require_folder, write_atomically

DASH = "–"
# Console width in characters, larger than any table, so that no cell is truncated (chosen).
WIDTH = 10_000
# Characters that make a spreadsheet evaluate a cell.
FORMULA = ("=", "+", "-", "@")

Record = Mapping[str, Any]


class Format(StrEnum):
    """Output formats."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="Output format; by default that of the suffix of --out (.csv, .json), else a table.",
        show_default=False,
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Output file; by default stdout.")]


def require_output_file(
    path: Path, option: str = "--out", model: Path | None = None, force: bool = True
) -> None:
    """Raise if the file `path`, the value of `option`, can't be written, or is the `model` being read.

    Called before anything is computed. Without `force`, existing files are rejected too.
    """
    if model is not None and path.exists() and model.exists() and path.samefile(model):
        raise ValueError(
            f"{path} is the model itself; expected another file: choose another with {option}"
        )
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        require_folder(path.parent, create=False)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(
            error.errno,
            f"cannot write {path}: {reason}; expected a file in an existing, writable folder: choose "
            f"another with {option}",
        ) from error
    if path.exists() and not force:
        raise FileExistsError(
            f"{path} already exists; expected a new file: choose another with {option}, or pass --force to "
            "overwrite it"
        )


def write_records(
    records: Sequence[Record], table: Table, form: Format | None, out: Path | None
) -> None:
    """Print the results, or write them atomically to the file `out`.

    Without a format that of the suffix of `out` is used: CSV, JSON, else a table.
    """
    suffix = out.suffix.lower().removeprefix(".") if out else ""
    match form or (Format(suffix) if suffix in list(Format) else Format.TABLE):
        case Format.JSON:
            plain = [_without_nan(record) for record in records]
            text = json.dumps(plain, indent=2, allow_nan=False) + "\n"
        case Format.CSV:
            text = _to_csv(records)
        case Format.TABLE:
            text = _to_text(table)
    # Bytes, because file names may be invalid UTF-8 and the terminal may use another encoding.
    data = text.encode("utf-8", "surrogateescape")
    if out is None:
        typer.echo(data, nl=False)
    else:
        write_atomically(out, data)


def printable(text: str) -> str:
    """`text` with control and formatting characters and line separators escaped, as in "\\x1b[31m"."""
    return "".join(
        each.encode("unicode_escape").decode("ascii")
        if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")
        else each
        for each in text
    )


def make_table(head: Sequence[str], rows: Sequence[Sequence[Any]], texts: int = 1) -> Table:
    """A table of `rows` under `head`; the first `texts` columns are left-aligned. None is shown empty."""
    table = Table(box=box.SIMPLE)
    for number, name in enumerate(head):
        table.add_column(
            Text(printable(name)), justify="left" if number < texts else "right", no_wrap=True
        )
    for row in rows:
        # Text, because rich would interpret brackets in a file name as markup.
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return printable(str(value))
    if not math.isfinite(value):
        return DASH
    # Four decimals, unless they would all be zero.
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.2g}"


def _to_text(table: Table) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=WIDTH).print(table)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def _to_csv(records: Sequence[Record]) -> str:
    """One line per record, without nested values."""
    names = [name for name, value in records[0].items() if not isinstance(value, Mapping)]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, extrasaction="ignore", lineterminator="\n")
    writer.writerow({name: _inert(name) for name in names})
    for record in records:
        values = _without_nan(record).items()
        writer.writerow(
            {name: _inert(each) if isinstance(each, str) else each for name, each in values}
        )
    return buffer.getvalue()


def _inert(text: str) -> str:
    """`text` as a CSV cell that neither a terminal nor a spreadsheet interprets."""
    escaped = printable(text)
    return f"'{escaped}" if escaped.startswith(FORMULA) else escaped


def _without_nan(record: Record) -> dict[str, Any]:
    """`record` with None for NaN and infinity, which JSON does not have and CSV would store as text."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
