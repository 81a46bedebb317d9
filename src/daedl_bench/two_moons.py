"""Two moons as an experiment: settings of the catalogue, rows, and the claims of the paper's figure."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from pandas import DataFrame

from daedl import figures
from daedl.demo import digits, maps, moons
from daedl.demo.moons import Result, Settings
from daedl.demo.training import Progress, Training
from daedl.storage import write_atomically
from daedl_bench import results
from daedl_bench.failures import Failures
from daedl_bench.results import Row
from daedl_bench.spec import Catalogue, digest

NAME = "two-moons"  # of the experiment
# Limits of the figure's claims, as shares of the largest possible uncertainty (chosen).
CERTAIN, UNCERTAIN = 0.25, 0.9


def settings_of(catalogue: Catalogue) -> Settings:
    """Settings of the experiment in `catalogue`."""
    experiment = catalogue.experiment(NAME)
    settings = dict(experiment.settings)
    return Settings(
        methods=tuple(catalogue.method(label) for label in experiment.methods),
        hidden=tuple(settings.pop("hidden")),
        training=Training(**settings.pop("training")),
        **settings,
    )


def key(settings: Settings) -> str:
    """Identifies figures measured with these settings."""
    compared = [[method.name, method.arguments()] for method in settings.methods]
    drawn = moons.OOD_CENTER, moons.OOD_DEVIATION, moons.OOD_SAMPLES, moons.FAR
    return digest([asdict(replace(settings, methods=())), compared, *drawn])


def run(
    settings: Settings,
    path: Path,
    seeds: Iterable[int],
    progress: Progress,
    failures: Failures,
) -> None:
    """Append the rows of every seed that the file `path` lacks, and draw the first beside it.

    A claim of the figure that the rows contradict is a failure too.
    """
    spec, picture = key(settings), path.with_suffix(".png")
    present = {row.seed for row in results.load(path) if row.spec == spec}
    drawn = picture.exists() and bool(present)
    for seed in dict.fromkeys(seeds):
        if seed in present and drawn:
            continue
        try:
            result = moons.run(seed, settings, progress)
            if not drawn:  # before the rows, so that rows without a picture show that it is missing
                write_atomically(picture, figures.png(maps.moons_maps(result)))
                drawn = True
            if seed not in present:
                results.append(path, rows_of(result, experiment=NAME, spec=spec))
        except Exception as error:
            failures.add(f"seed {seed}", error)
    measured = [row for row in results.load(path) if row.spec == spec]
    for claim in (claim for claim, holds in checks(results.frame(measured)).items() if not holds):
        failures.add(claim, ValueError("contradicted by the rows"))


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
