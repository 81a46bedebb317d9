"""The demo: two moons and handwritten digits, a table, a report; about a minute of computing."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from daedl.demo import digits, moons, report, table
from daedl.demo.training import Progress
from daedl.storage import require_folder, write_atomically

QUICK_EPOCHS = 2

S = TypeVar("S", moons.Settings, digits.Settings)


def run(out: Path, seed: int = 0, quick: bool = False, console: Console | None = None) -> Path:
    """Run both experiments, print the table, write the report into the folder `out`.

    Returns the absolute path of report.html; figures.json and the pictures as PNG lie beside it. `quick`
    trains for two epochs: it shows that everything runs, not what the methods can do.
    """
    started = time.perf_counter()
    out = out.absolute()
    require_folder(out, "choose another with --out")  # found out before minutes are spent
    console = console or Console()
    progress = Progress(console)
    on_moons = moons.run(seed, _shortened(moons.Settings(), quick), progress)
    on_digits = digits.run(seed, _shortened(digits.Settings(), quick), progress)
    figures = {"two moons": on_moons.measure(), "digits": on_digits.measure()}
    shown = _tabulated(on_digits)
    console.print(shown.rich())
    pictures = report.draw(on_moons, on_digits)
    for name, data in pictures.items():
        write_atomically(out / f"{name}.png", data)
    write_atomically(out / "figures.json", json.dumps(figures, indent=1).encode())
    seconds = time.perf_counter() - started
    html = report.render(on_moons, on_digits, shown, pictures, seconds)
    write_atomically(out / "report.html", html.encode())
    console.print(f"Done in {seconds:.0f} s. The report is at", style="bold")
    console.print(str(out / "report.html"), soft_wrap=True, highlight=False)
    return out / "report.html"


def _shortened(settings: S, quick: bool) -> S:
    if not quick:
        return settings
    return replace(settings, training=replace(settings.training, max_epochs=QUICK_EPOCHS))


def _tabulated(result: digits.Result) -> table.Table:
    known, unknown = map(report.names, (result.settings.known, result.settings.held_out))
    sections = (
        ("test", f"digits {known}, test"),
        ("unknown", f"against digits {unknown}"),
        ("noise", "against uniform noise"),
    )
    return table.tabulate(result.measure(), "Handwritten digits, figures times 100", sections)
