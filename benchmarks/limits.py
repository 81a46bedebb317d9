"""Figures with limits, which benchmarks of the machine share: a row, a table for people, a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import daedl
from daedl_bench.rows import commit


@dataclass(frozen=True)
class Limited:
    """One measured figure; `value` must be at most `limit`, or at least it where `at_least`."""

    benchmark: str
    case: str
    unit: str
    value: float
    limit: float | None = None
    at_least: bool = False
    threads: int = field(default_factory=torch.get_num_threads)
    torch: str = torch.__version__
    daedl: str = daedl.__version__
    commit: str = field(default_factory=commit)

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def conclude(console: Console, title: str, rows: Sequence[Limited], path: Path) -> int:
    """Show the rows, append them to the file `path`, and give the exit status: 1 if a limit is missed."""
    table = Table("figure", "case", "measured", "limit", title=title)
    for each in rows:
        limit = "" if each.limit is None else f"{'≥' if each.at_least else '≤'} {each.limit:.3g}"
        color = "green" if each.met else "red"
        measured = f"[{color}]{each.value:.4g}[/{color}] {each.unit}"
        table.add_row(each.benchmark, each.case, measured, limit)
    console.print(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(each)) + "\n" for each in rows)
    console.print(f"rows appended to {path}")
    return 0 if all(each.met for each in rows) else 1
