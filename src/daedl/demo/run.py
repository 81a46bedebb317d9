"""The demo: two moons, a cubic and digits, a table and a report; under two minutes on one core."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from daedl.demo import cubic, digits, moons, report, table
from daedl.demo.training import Progress
from daedl.storage import require_folder, write_atomically

QUICK_EPOCHS = 2  # chosen: enough to run every step
SEEDS = 3  # chosen: the smallest number with a useful standard deviation


def run(
    out: Path,
    seed: int = 0,
    seeds: int = SEEDS,
    quick: bool = False,
    console: Console | None = None,
) -> Path:
    """Train on all datasets, print the digits table, and write the report into the folder `out`.

    Arguments:
        seed: first seed; two moons are trained with this one only.
        seeds: number of seeds for the digits, at least 2.
        quick: train for two epochs, to check that everything runs.

    Returns:
        The absolute path of report.html. The figures are next to it as PNG, and all measured values
        as figures.json.
    """
    if seeds < 2:
        raise ValueError(f"seeds is {seeds}; expected at least 2, to compute a standard deviation")
    started = time.perf_counter()
    out = out.absolute()
    require_folder(out, "choose another with --out")  # before training starts
    console = console or Console()
    progress = Progress(console)
    settings, training = moons.Settings(), digits.TRAINING
    if quick:
        settings = replace(settings, training=replace(settings.training, max_epochs=QUICK_EPOCHS))
        training = replace(training, max_epochs=QUICK_EPOCHS)
    on_moons = moons.run(seed, settings, progress)
    on_cubic = cubic.run(seed, QUICK_EPOCHS if quick else cubic.MAX_EPOCHS, progress)
    on_digits = [digits.run(each, training, progress) for each in range(seed, seed + seeds)]

    lines = table.summarize([each.measure() for each in on_digits])
    console.print(table.rich_table(lines))
    console.print(table.conclude(lines), highlight=False)
    pictures = report.draw(on_moons, on_digits[0], on_cubic)
    for name, data in pictures.items():
        write_atomically(out / f"{name}.png", data)
    values = {"two moons": _records([on_moons]), "digits": _records(on_digits)}
    write_atomically(out / "figures.json", json.dumps(values, indent=1).encode())
    seconds = time.perf_counter() - started
    html = report.render(on_moons, on_digits, lines, pictures, seconds, quick)
    write_atomically(out / "report.html", html.encode())
    console.print(f"Done in {seconds:.0f} s. The report is at", style="bold")
    console.print(str(out / "report.html"), soft_wrap=True, highlight=False)
    return out / "report.html"


def _records(results: Sequence[moons.Result | digits.Result]) -> list[dict[str, Any]]:
    """One record per measured value."""
    return [
        {
            **{"seed": result.seed, "method": method, "data": data},
            **each._asdict(),
            "value": each.value if math.isfinite(each.value) else None,  # JSON has no NaN
        }
        for result in results
        for method, datasets in result.measure().items()
        for data, figures in datasets.items()
        for each in figures
    ]
