"""The paper's first figure: uncertainty over a plane, its picture, and whether the rows support its claims.

Missing rows are appended to two-moons.jsonl; the first seed is drawn as a picture next to it. The exit status
is 1 if the rows contradict a claim.
"""

from dataclasses import asdict, replace
from pathlib import Path

import torch
import typer
from pandas import DataFrame

from daedl import figures
from daedl.demo import digits, maps, moons
from daedl.demo.moons import Result, Settings
from daedl.demo.training import Progress
from daedl.methods import DAEDL, EDL, Softmax
from daedl.spectral import SpectralNorm
from daedl.storage import write_atomically
from daedl_bench import options, results
from daedl_bench.results import Row
from daedl_bench.spec import digest

NAME = "two-moons"  # of the rows and their file
# Data and training of the demo. With the paper's coefficient of 1 a small network cannot separate two moons,
# as its validation accuracy shows; 3 is DDU's.
SETTINGS = Settings(
    methods=(Softmax(), EDL(), DAEDL.as_published(spectral=SpectralNorm(coefficient=3.0)))
)
# Limits of the figure's claims, as shares of the largest possible uncertainty (chosen).
CERTAIN, UNCERTAIN = 0.25, 0.9
app = typer.Typer()


@app.command(help=__doc__)
def main(seeds: options.Seeds = "0", folder: options.ResultsFolder = options.RESULTS) -> None:
    torch.set_num_threads(1)
    spec, path = key(SETTINGS), folder / f"{NAME}.jsonl"
    picture, present = path.with_suffix(".png"), {row.seed for row in _current(path)}
    drawn = picture.exists() and bool(present)
    for seed in dict.fromkeys(options.seed_list(seeds)):
        if seed in present and drawn:
            continue
        result = moons.run(seed, SETTINGS, Progress())
        if not drawn:  # before the rows, so that rows without a picture show that it is missing
            write_atomically(picture, figures.png(maps.moons_maps(result)))
            drawn = True
        if seed not in present:
            results.append(path, rows_of(result, experiment=NAME, spec=spec))
    verdict = checks(results.frame(_current(path)))
    for claim, holds in verdict.items():
        typer.echo(f"{claim}: {'yes' if holds else 'no'}")
    raise typer.Exit(0 if all(verdict.values()) else 1)


def _current(path: Path) -> list[Row]:
    return [row for row in results.load(path) if row.spec == key(SETTINGS)]


def key(settings: Settings) -> str:
    """Identifies figures measured with these settings."""
    compared = [[method.name, method.arguments()] for method in settings.methods]
    drawn = moons.OOD_CENTER, moons.OOD_DEVIATION, moons.OOD_SAMPLES, moons.FAR
    return digest([asdict(replace(settings, methods=())), compared, *drawn])


def rows_of(result: Result | digits.Result, **shared: str) -> list[Row]:
    """Every figure of one seed of a demo; `shared` are fields of the rows."""
    return [
        row
        for method, sets in result.measure().items()
        for data, measured in sets.items()
        for row in results.rows(
            measured,
            method=method,
            data=data,
            seed=result.seed,
            seconds=result.trained[method].seconds,
            **shared,
        )
    ]


def checks(table: DataFrame) -> dict[str, bool]:
    """The claims of the figure, and whether the rows of every seed in `table` agree with them."""
    table = table[(table["task"] == "uncertainty") & (table["score"] == "variance")]
    if table.empty:
        return {}
    values = table.groupby(["method", "data"])["value"]
    least, most = values.min().to_dict(), values.max().to_dict()
    others = sorted(set(table["method"]) - {"daedl"})
    return {
        f"DAEDL is uncertain far from the data (at least {UNCERTAIN})": least["daedl", "far"]
        >= UNCERTAIN,
        f"DAEDL is certain near the data (at most {CERTAIN})": most["daedl", "test"] <= CERTAIN,
        **{
            f"{name} stays certain far from the data (at most {CERTAIN})": most[name, "far"]
            <= CERTAIN
            for name in others
        },
    }
