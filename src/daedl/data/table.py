"""Reads tables of numbers from CSV files."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from daedl.names import suggestion

# Separators that are recognised in the first line, most frequent first.
SEPARATORS = ",;\t"
# Names that errors list (chosen).
LISTED = 10


class Table(NamedTuple):
    """Numeric columns: features (N, F) and targets (N, D), float64."""

    features: Tensor
    targets: Tensor


def column_names(path: Path) -> list[str]:
    """Returns the names in the first line of a CSV file."""
    return _read(path)[0].values


def line_numbers(path: Path) -> list[int]:
    """Returns the numbers of the lines of a CSV file that contain the rows, blank lines counted."""
    return [line.number for line in _read(path)[1:]]


def read_table(path: Path, features: Sequence[str], targets: Sequence[str] = ()) -> Table:
    """Reads columns of a CSV file by name; errors name the line and column of what is no number.

    The first line contains the names; the separator is a comma, semicolon or tab. Other columns are ignored.
    """
    (_, names), *lines = _read(path)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"{path} has several columns {', '.join(map(repr, repeated[:LISTED]))}; expected unique names: "
            "rename them"
        )
    wanted = [*features, *targets]
    for name in wanted:
        if name not in names:
            raise ValueError(
                f"{path} has no column {name!r}; expected one of {', '.join(names[:LISTED])}"
                f"{', ...' if len(names) > LISTED else ''}{suggestion(name, names)}"
            )
    if not lines:
        raise ValueError(f"{path} has no rows; expected numbers below the line of names")
    indices = [names.index(name) for name in wanted]
    rows = []
    for number, line in lines:
        if len(line) != len(names):
            raise ValueError(
                f"line {number} of {path} has {len(line)} values; expected {len(names)}, one per column"
            )
        rows.append([_number(line[k], names[k], number, path) for k in indices])
    values = torch.tensor(rows, dtype=torch.float64)
    return Table(values[:, : len(features)], values[:, len(features) :])


def _number(text: str, column: str, line: int, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    arrived = f"{text.strip()[:40]!r}" if text.strip() else "nothing"
    raise ValueError(
        f"line {line}, column {column!r} of {path} contains {arrived}; expected a finite number: encode "
        "categories as numbers, and remove or fill rows with missing values"
    )


class Line(NamedTuple):
    """Number of a line, from 1, and its values."""

    number: int
    values: list[str]


def _read(path: Path) -> list[Line]:
    """Returns all lines that are not blank, the first one with names."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error.reason}); expected a CSV file: export it as CSV UTF-8"
        ) from error
    first = text[: text.find("\n")] if "\n" in text else text
    separator = max(SEPARATORS, key=first.count)
    reader = csv.reader(text.splitlines(), delimiter=separator)
    # A row of empty cells is not blank: its values are missing.
    lines = [
        Line(reader.line_num, row) for row in reader if len(row) > 1 or any(map(str.strip, row))
    ]
    if not lines:
        raise ValueError(
            f"{path} is empty; expected a CSV file with names of columns in the first line"
        )
    return [Line(lines[0].number, [name.strip() for name in lines[0].values]), *lines[1:]]
