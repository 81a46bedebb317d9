"""Reads tables of numbers from CSV files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from daedl.data.csv_file import read_csv


class Table(NamedTuple):
    """Numeric columns: features (N, F) and targets (N, D), float64."""

    features: Tensor
    targets: Tensor


def column_names(path: Path) -> list[str]:
    """Returns the names in the first line of a CSV file."""
    return read_csv(path).names


def line_numbers(path: Path) -> list[int]:
    """Returns the numbers of the lines of a CSV file that contain the rows, blank lines counted."""
    return [number for number, _ in read_csv(path).lines]


def read_table(path: Path, features: Sequence[str], targets: Sequence[str] = ()) -> Table:
    """Reads columns of a CSV file by name; errors name the line and column of what is no number.

    The first line contains the names; the separator is a comma, semicolon or tab. Other columns are ignored.
    """
    file = read_csv(path)
    indices = [file.position(name) for name in (*features, *targets)]
    rows, expected = [], len(file.names)
    for number, line in file.lines:
        if len(line) != expected:
            raise ValueError(
                f"line {number} of {path} has {len(line)} values; expected {expected}, one per column"
            )
        rows.append([_number(line[k], file.names[k], number, path) for k in indices])
    if not rows:
        raise ValueError(f"{path} has no rows; expected numbers below the line of names")
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
