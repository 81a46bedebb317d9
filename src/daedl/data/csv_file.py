"""Reads CSV files with names of columns in the first line."""

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

from daedl.names import suggestion

# Separators that are recognised in the first line; a .tsv file has tabs.
SEPARATORS = ",;\t"
LARGEST = 1 << 30  # bytes of a file (chosen: 10 million sentences)
LISTED = 10  # names that errors list (chosen)


class CSVFile(NamedTuple):
    """Names of the columns, and the number and values of each line below."""

    path: Path
    names: list[str]
    lines: list[tuple[int, list[str]]]

    def position(self, name: str, remedy: str = "rename a column") -> int:
        """The position of a column."""
        if self.names.count(name) == 1:
            return self.names.index(name)
        if name in self.names:
            raise ValueError(
                f"{self.path} has several columns {name!r}; expected unique names: rename them"
            )
        more = ", ..." if len(self.names) > LISTED else ""
        raise ValueError(
            f"{self.path} has no column {name!r}; expected one of {', '.join(self.names[:LISTED])}{more}"
            f"{suggestion(name, self.names)}: {remedy}"
        )


def read_csv(path: Path) -> CSVFile:
    """Reads a file with commas, semicolons or tabs; values may be quoted. Blank lines are skipped."""
    text = read_text(path)
    unquoted = re.sub('"[^"]*"', "", text.partition("\n")[0])
    separator = "\t" if path.suffix.lower() == ".tsv" else max(SEPARATORS, key=unquoted.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        lines = [(reader.line_num, line) for line in reader if line]
    except csv.Error as error:
        raise ValueError(
            f"line {reader.line_num} of {path} can't be read ({error}); expected a CSV file with a header: "
            "quote values with separators or line breaks"
        ) from error
    if not lines:
        raise ValueError(
            f"{path} is empty; expected a CSV file with names of columns in the first line"
        )
    (_, names), *lines = lines
    # A row of empty cells is not blank: its values are missing.
    rows = [each for each in lines if len(each[1]) > 1 or len(names) == 1 or each[1][0].strip()]
    return CSVFile(path, [name.strip() for name in names], rows)


def read_text(path: Path) -> str:
    """Reads a text file in UTF-8."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}; expected a CSV file or texts: check the path")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST:,} bytes; expected less: divide the file")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error}); expected a file in UTF-8: convert it, or export it as CSV "
            "UTF-8"
        ) from error
