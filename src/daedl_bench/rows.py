"""Measured figures, one row each, as lines of JSON."""

import json
import math
import subprocess
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from daedl.evaluate import Measured
from daedl.storage import write_atomically


class RowsWarning(UserWarning):
    """A file of rows was damaged, and what could be saved of it was."""


@dataclass(frozen=True)
class Row:
    """One measured figure and all that is needed to measure it again.

    Attributes:
        value: as `daedl.metrics` gives it, a share of 1 and not of 100; None where it is undefined.
        seconds: that training and the fit of the density took; of a runner's row all that was done
            for this data set, without what came from the cache (task "cost" has the training).
        torch, daedl: versions.
        spec: digest of the specification, where there is one.
        commit: of the checkout that the library was run from, or "unknown".
        threads: of torch.
        protocol: name of the protocol, where there is one.
        made: whether the corruptions were made by `daedl data corrupt`, in place of published ones.
    """

    experiment: str
    method: str
    data: str
    task: str
    score: str
    metric: str
    value: float | None
    seed: int
    seconds: float
    torch: str
    daedl: str
    commit: str
    threads: int
    spec: str = ""
    protocol: str = ""
    made: bool = False


@cache
def commit() -> str:
    """The commit of the checkout that this package lies in, "-dirty" if the package was changed since."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # The package alone: rows that are written into the checkout don't make it another one.
        changed = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def row(
    measured: Measured,
    *,
    experiment: str,
    method: str,
    data: str,
    seed: int,
    seconds: float,
    spec: str = "",
    protocol: str = "",
) -> Row:
    """`measured` with its circumstances; versions and threads are those of this process."""
    return Row(
        experiment=experiment,
        method=method,
        data=data,
        task=measured.task,
        score=measured.score,
        metric=measured.metric,
        # JSON has no NaN.
        value=measured.value if math.isfinite(measured.value) else None,
        seed=seed,
        seconds=round(seconds, 2),
        torch=torch.__version__,
        daedl=version("daedl"),
        commit=commit(),
        threads=torch.get_num_threads(),
        spec=spec,
        protocol=protocol,
    )


def save(path: Path, rows: Iterable[Row]) -> None:
    """Write `rows` to the file `path`, in place of what it held."""
    write_atomically(path, _lines(rows).encode())


def append(path: Path, rows: Iterable[Row]) -> None:
    """Write `rows` after those that the file `path` holds, if it exists; all of them or none.

    Several runs may append to it side by side: the file is locked meanwhile.
    """
    with FileLock(path.with_name(f".{path.name}.lock")):
        before = "".join(line + "\n" for line in _whole_lines(path)) if path.exists() else ""
        write_atomically(path, (before + _lines(rows)).encode())


def load(path: Path) -> list[Row]:
    """The rows in the file `path`."""
    found = []
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            found.append(Row(**json.loads(line)))
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(
                f"line {number} of {path} is not a row ({error}); expected one JSON object with the "
                "fields of daedl_bench.rows.Row: remove the line, or measure again"
            ) from error
    return found


def _whole_lines(path: Path) -> list[str]:
    """The lines of `path`; if the last is broken, without it and what was measured together with it."""
    # A line that was cut off may end amid a character; after a crash a file may end in zeros.
    text = path.read_bytes().decode("utf-8", "replace").rstrip("\0\n\r ")
    lines = text.splitlines()
    if lines and _parsed(lines[-1]) is None:
        kept = _without_last_group(lines[:-1])
        warnings.warn(
            f"the last line of {path} is broken and left out, with {len(lines) - 1 - len(kept)} "
            f"rows that were measured together with it: {lines[-1][:60]!r}; they are missing until what "
            "wrote them is run again",
            RowsWarning,
            stacklevel=3,
        )
        return kept
    return lines


def _parsed(line: str) -> dict[str, Any] | None:
    """The JSON object in `line`, or None."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _without_last_group(lines: list[str]) -> list[str]:
    """`lines` without the last ones that may have been measured together: a group is whole or absent.

    A seed of two moons or of the digits is one group, whatever the method; under a protocol the rows of
    each method and data set are.
    """
    same: tuple[str, ...] = ("experiment", "seed", "spec")
    parsed = [_parsed(line) or {} for line in lines]
    if parsed and parsed[-1].get("protocol"):
        same += ("protocol", "method", "data")
    circumstances = [[each.get(key) for key in same] for each in parsed]
    last = circumstances[-1:]
    while lines and circumstances[len(lines) - 1 : len(lines)] == last:
        lines = lines[:-1]
    return lines


def _lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(asdict(each), allow_nan=False) + "\n" for each in rows)
