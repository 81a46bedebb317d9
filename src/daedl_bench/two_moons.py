"""The experiment on two moons: settings of the catalogue, rows, and the claims of the paper's figure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace

from daedl.demo import moons
from daedl.demo.moons import Result, Settings
from daedl.demo.training import Training
from daedl_bench.rows import Row, row
from daedl_bench.spec import Catalogue, digest

NAME = "two-moons"  # among the experiments
# The figure's claims: uncertainty at most, and at least, as a share of the largest (chosen).
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
    """What identifies figures measured with these settings."""
    compared = [[method.name, method.arguments()] for method in settings.methods]
    drawn = moons.OOD_CENTER, moons.OOD_DEVIATION, moons.OOD_SAMPLES, moons.FAR
    return digest([asdict(replace(settings, methods=())), compared, *drawn])


def rows_of(result: Result) -> list[Row]:
    """Every measured figure."""
    return [
        row(
            measured,
            experiment=NAME,
            method=method,
            data=data,
            seed=result.seed,
            seconds=result.trained[method].seconds,
            spec=key(result.settings),
        )
        for method, sets in result.measure().items()
        for data, figures in sets.items()
        for measured in figures
    ]


def checks(rows: Iterable[Row]) -> dict[str, bool]:
    """What the figure claims, and whether every seed among `rows` bears it out."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in rows:
        if (each.task, each.score, each.metric) == ("uncertainty", "variance", "mean"):
            values[each.method, each.data].append(each.value or 0.0)
    others = [name for name, data in values if name != "daedl" and data == "far"]
    return {
        f"DAEDL is uncertain far from the data (at least {UNCERTAIN})": min(values["daedl", "far"])
        >= UNCERTAIN,
        f"DAEDL is certain amid the data (at most {CERTAIN})": max(values["daedl", "test"])
        <= CERTAIN,
        **{
            f"{name} stays certain far from the data (at most {CERTAIN})": max(values[name, "far"])
            <= CERTAIN
            for name in others
        },
    }
