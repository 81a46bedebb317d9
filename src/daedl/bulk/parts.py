"""Parts of the data, which workers read: image files, or rows of Parquet files."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from daedl.checks import import_optional
from daedl.data.files import name_some
from daedl.data.folder import Listing
from daedl.scorer import Array, Batch, Scorer, require_columns

# Rows or images of a part (chosen: seconds of work, which a lost worker repeats); a multiple of the batch
# size, so that parts don't change batches.
PART = 4096
# Rows in memory at a time (chosen); a multiple of the batch size too.
CHUNK = 1024
SUFFIX = ".parquet"


@dataclass(frozen=True)
class Pictures:
    """Image files."""

    files: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    def __str__(self) -> str:
        return f"{self.files[0]} and {len(self) - 1} more" if len(self) > 1 else self.files[0]

    def batches(self, *_: Any) -> Iterator[tuple[dict[str, Any], Batch]]:
        """Yields the paths in the column `file`, twice: to be kept, and as the inputs."""
        for start in range(0, len(self), CHUNK):
            files = self.files[start : start + CHUNK]
            yield _place(files), {"file": np.array(files, dtype=object)}


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of a row group of a Parquet file, whose first row is row `first` of the file."""

    file: str
    group: int
    first: int
    start: int
    stop: int

    @property
    def files(self) -> tuple[str]:
        """The file."""
        return (self.file,)

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.file}, rows {self.first + self.start} to {self.first + self.stop - 1}"

    def batches(
        self, columns: Sequence[str], keep: Sequence[str] = ()
    ) -> Iterator[tuple[dict[str, Any], Batch]]:
        """Yields what is kept, `file`, `row` and Arrow arrays of `keep`, and NumPy arrays of `columns`."""
        parquet, row = import_optional("pyarrow.parquet", "Parquet files", "'daedl[ray]'"), 0
        with parquet.ParquetFile(self.file) as file:
            names = list(dict.fromkeys([*columns, *keep]))
            for batch in file.iter_batches(CHUNK, row_groups=[self.group], columns=names):
                inside = slice(max(self.start - row, 0), max(min(self.stop - row, len(batch)), 0))
                if inside.start < inside.stop:
                    numbers = self.first + row + np.arange(inside.start, inside.stop)
                    own = batch.slice(inside.start, len(numbers))
                    kept = {"row": numbers} | {name: own[name] for name in keep}
                    place = _place([self.file] * len(numbers)) | kept
                    yield place, {name: _array(own[name]) for name in columns}
                row += len(batch)


def _place(files: Sequence[str]) -> dict[str, Any]:
    """The column `file`; bytes of names that are not UTF-8, which Parquet requires, are escaped."""
    names = [os.fsencode(each).decode("utf-8", "backslashreplace") for each in files]
    return {"file": np.array(names, dtype=object)}


Part = Pictures | Rows


@dataclass(frozen=True)
class Labelled:
    """Batches (inputs, labels) of rows with the labels in the column `label`, for fits.

    Labels are class indices, or names of the model's classes.
    """

    rows: Rows
    scorer: Scorer
    label: str

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for place, batch in self.rows.batches([*self.scorer.columns, self.label]):
            numbers = self._numbers(batch[self.label], place["row"])
            try:
                inputs = self.scorer.inputs(batch, place["row"])
            except ValueError as error:
                raise ValueError(f"{self.rows.file}: {error}") from error
            yield inputs, torch.tensor(numbers)

    def _numbers(self, labels: Array, rows: Array) -> Array:
        # Arrow returns missing values as None, or as NaN among numbers.
        among_numbers = labels.dtype.kind == "f" and labels.ndim == 1
        absent = np.isnan(labels) if among_numbers else [each is None for each in labels]
        if missing := list(rows[absent]):
            raise ValueError(
                f"the column {self.label!r} of {self.rows.file} has no label in rows {name_some(missing)}; "
                "expected one in every row: complete or remove these rows"
            )
        if labels.dtype.kind in "iu":
            return labels.astype(np.int64)
        if labels.dtype != object:
            raise ValueError(
                f"the column {self.label!r} of {self.rows} has labels of type {labels.dtype}; expected class "
                "indices or names: convert them to integers, or name another column with --label"
            )
        numbers = {name: number for number, name in enumerate(self.scorer.model.class_names or ())}
        if unknown := sorted({str(each) for each in labels if each not in numbers}):
            raise ValueError(
                f"the column {self.label!r} of {self.rows} has labels unknown to the model ("
                f"{name_some(unknown)}); expected {name_some(list(numbers)) or 'class indices'}: rename or "
                "remove them"
            )
        return np.array([numbers[each] for each in labels])


def find_parts(sources: Iterable[str | Path], size: int = PART) -> list[Part]:
    """The parts of image files, or of Parquet files; `sources` are files or folders of either kind.

    A folder is searched for files of both kinds, at all depths and in the order of their paths; names that
    start with a dot or an underscore are ignored.
    """
    images: list[Path] = []
    tables: list[Path] = []
    for source in (Path(each).absolute() for each in sources):  # workers have other current folders
        if source.is_dir():
            listing = Listing.of(source)
            images += listing.images
            tables += [each for each in listing.others if _is_table(each)]
        else:
            (tables if _is_table(source) else images).append(source)
    if bool(images) == bool(tables):
        arrived = f"{len(images)} images and {len(tables)} Parquet files"
        raise ValueError(
            f"the inputs are {arrived}; expected images or Parquet files, not both: pass one kind"
        )
    if tables:
        parts = [part for table in dict.fromkeys(tables) for part in _split(table, size)]
        if not parts:
            raise ValueError(f"{tables[0]} has no row; expected at least one: name other files")
        return parts
    names = list(dict.fromkeys(map(str, images)))
    return [Pictures(tuple(names[i : i + size])) for i in range(0, len(names), size)]


def choose_column(
    parts: Sequence[Part], column: str | Sequence[str] | None, keep: Sequence[str]
) -> str | Sequence[str]:
    """The column, or columns, with the inputs; raises unless every file has them."""
    tables = {part.file: part for part in parts if isinstance(part, Rows)}
    if not tables:
        if column or keep:
            raise ValueError(
                "columns were named, but the inputs are images; expected Parquet files: leave the names out"
            )
        return "file"
    first = _columns_of(next(iter(tables.values())))
    others = [name for name in first if name not in keep]
    if column is None and len(others) != 1:
        raise ValueError(
            f"the inputs have the columns {name_some(first)}; expected the name of the one with the inputs: "
            "pass it as column, with --column"
        )
    chosen = others[0] if column is None else column
    names = [chosen] if isinstance(chosen, str) else chosen
    for file, part in tables.items():
        require_columns([*names, *keep], _columns_of(part), file)
    return chosen


def _is_table(path: Path) -> bool:
    return path.suffix == SUFFIX and not path.name.startswith("_")


def _split(path: Path, size: int) -> list[Part]:
    parquet = import_optional("pyarrow.parquet", "Parquet files", "'daedl[ray]'")
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}; expected a Parquet file: check the path")
    try:
        with parquet.ParquetFile(path) as file:
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    except ValueError as error:  # pyarrow's errors are its subclasses
        raise ValueError(
            f"{path} can't be read ({error}); expected a complete Parquet file: write it again"
        ) from error
    parts: list[Part] = []
    first = 0
    for group, count in enumerate(counts):
        parts += [
            Rows(str(path), group, first, start, min(start + size, count))
            for start in range(0, count, size)
        ]
        first += count
    return parts


def _columns_of(part: Rows) -> list[str]:
    """The names of the columns of the file."""
    parquet = import_optional("pyarrow.parquet", "Parquet files", "'daedl[ray]'")
    return list(parquet.read_schema(part.file).names)


def _array(column: Any) -> Any:
    """An Arrow column as an array; lists of one length as (B, H), without a Python object per row."""
    types = import_optional("pyarrow.types", "Parquet files", "'daedl[ray]'")
    is_list = types.is_list(column.type) or types.is_large_list(column.type)
    if (is_list or types.is_fixed_size_list(column.type)) and column.null_count == 0:
        flat, rows = column.flatten(), len(column)
        numeric = types.is_integer(flat.type) or types.is_floating(flat.type)
        lengths = set() if not is_list else set(column.value_lengths().unique().to_pylist())
        if numeric and flat.null_count == 0 and len(lengths) <= 1:
            return flat.to_numpy(zero_copy_only=False).reshape(rows, -1)
    return column.to_numpy(zero_copy_only=False)
