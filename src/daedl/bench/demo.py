"""The demo: two moons and handwritten digits, a table, a report; about a minute of computing."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from daedl.bench import digits, moons, report, rows, table
from daedl.bench.spec import catalogue
from daedl.bench.trained import Progress
from daedl.storage import require_folder, write_atomically

QUICK_EPOCHS = 2

S = TypeVar("S", moons.Settings, digits.Settings)


def run(out: Path, seed: int = 0, quick: bool = False, console: Console | None = None) -> Path:
    """Run both experiments, print the table, write the report into the folder `out`.

    Returns the absolute path of report.html; rows.jsonl and the figures as PNG lie beside it. `quick`
    trains for two epochs: it shows that everything runs, not what the methods can do.
    """
    started = time.perf_counter()
    out = out.absolute()
    require_folder(out, "choose another with --out")  # found out before minutes are spent
    console = console or Console()
    progress = Progress(console)
    on_moons = moons.run(seed, _shortened(moons.Settings.of(catalogue()), quick), progress)
    on_digits = digits.run(seed, _shortened(digits.Settings(), quick), progress)
    found = on_digits.rows()
    shown = _tabulated(found, on_digits)
    console.print(shown.rich())
    pictures = report.draw(on_moons, on_digits)
    for name, data in pictures.items():
        write_atomically(out / f"{name}.png", data)
    rows.save(out / "rows.jsonl", [*on_moons.rows(), *found])
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


def _tabulated(found: list[rows.Row], result: digits.Result) -> table.Table:
    known, unknown = map(report.names, (result.settings.known, result.settings.held_out))
    sections = (
        ("test", f"digits {known}, test"),
        ("unknown", f"against digits {unknown}"),
        ("noise", "against uniform noise"),
    )
    return table.tabulate(found, "Handwritten digits, figures times 100", sections)
