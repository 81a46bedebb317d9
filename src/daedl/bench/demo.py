"""The demo: two moons and handwritten digits, a table, a report; about a minute of computing."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from daedl.bench import digits, moons, report, rows, table
from daedl.bench.trained import Progress
from daedl.storage import write_atomically

QUICK_EPOCHS = 2


def run(
    out: Path, seed: int = 0, quick: bool = False, console: Console | None = None
) -> Path:
    """Run both experiments, print the table, write the report into the folder `out`.

    Returns the absolute path of report.html; rows.jsonl and the figures as PNG lie beside it. `quick`
    trains for two epochs: it shows that everything runs, not what the methods can do.
    """
    started = time.perf_counter()
    out = prepared(out)
    console = console or Console()
    progress = Progress(console)
    on_moons = moons.run(seed, _shortened(moons.Settings(), quick), progress)
    on_digits = digits.run(seed, _shortened(digits.Settings(), quick), progress)
    found = on_digits.rows()
    shown = tabulate(found, on_digits)
    console.print(shown.rich())
    pictures = report.draw(on_moons, on_digits)
    for name, data in pictures.items():
        write_atomically(out / f"{name}.png", data)
    rows.save(out / "rows.jsonl", [*on_moons.rows(), *found])
    seconds = time.perf_counter() - started
    html = report.render(on_moons, on_digits, shown, pictures, seconds)
    path = out / "report.html"
    write_atomically(path, html.encode())
    console.print(f"{seconds:.0f} s in all. The report is at", style="bold")
    console.print(str(path), soft_wrap=True, highlight=False)
    return path
