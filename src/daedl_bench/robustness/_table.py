"""The table of the campaign in the documentation."""

from pathlib import Path

import msgspec

from daedl_bench.names import DASH, markdown
from daedl_bench.options import RESULTS
from daedl_bench.studies._machine import Limited


def table(folder: Path = RESULTS) -> str:
    """The last figure of each kind of each part, and its limit."""
    lines = (folder / "robustness.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=Limited) for line in lines]
    last = {(row.case, row.benchmark): row for row in rows}
    parts = dict.fromkeys(part for part, _ in last)
    shown = [(part, row) for part in parts for (case, _), row in last.items() if case == part]
    return markdown(
        ["part", "figure", "measured", "limit"],
        [[part, row.benchmark, _text(row.value, row.unit), _limit(row)] for part, row in shown],
        2,
    )


def _limit(row: Limited) -> str:
    return DASH if row.limit is None else _text(row.limit, row.unit)


def _text(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
    return f"{number} {unit}".strip()
