"""Figures of one method on one split: accuracy, calibration, and OOD inputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from daedl.evaluate import Measured
from daedl.methods import regression
from daedl.metrics import auroc
from daedl.regression_evaluation import regression as evaluated
from daedl.regression_prediction import RegressionPrediction
from daedl.regressor import Regressor
from daedl.selective import MaxWidth
from daedl_bench.spec import digest
from daedl_bench.studies.regression import data
from daedl_bench.studies.regression.training import (
    CANDIDATES,
    Trained,
    keep_residuals,
    select,
    train_one,
)

# The splits on which conformal intervals and OOD inputs are measured, which need further trainings.
FIRST_SPLITS = range(5)
HIDDEN = {"protein": 100}
CALIBRATION = 0.2  # of the training part, held out for conformal intervals
ANY_WIDTH = 1e300  # accepts every interval


class Split(NamedTuple):
    """A set, the number of the split, and the root of the data."""

    root: Path
    name: str
    number: int


def key(name: str, number: int, method: str) -> str:
    """Identifies the rows of a method with its present settings on a split."""
    return digest([name, number, method, regression.build(method).arguments(), list(CANDIDATES)])


def measure(place: Split, method: str) -> Iterator[Measured]:
    """All figures of `method` on a split."""
    train, test = data.split(*place)
    hidden = HIDDEN.get(place.name, 50)
    trained = select(train, method, hidden, place.number)
    yield Measured("training", "", "steps", float(trained.chosen.steps))
    yield from evaluated(trained.regressor.predict(test.features), test.targets)
    if place.number in FIRST_SPLITS:
        yield from _conformal(trained, train, test, hidden, place.number)
        yield from _unlike(place, trained.regressor, train, test)
        yield from _extrapolated(place, trained, train, test, hidden)


def _conformal(
    trained: Trained, train: data.Part, test: data.Part, hidden: int, seed: int
) -> Iterator[Measured]:
    """Coverage and width of conformal intervals, of a network trained without the calibration part."""
    fitting, held_out = data.validation(train, seed, CALIBRATION)
    model = train_one(fitting, trained.method, trained.chosen, hidden, seed)
    keep_residuals(model, trained.regressor)
    # Intervals only: a variance that is equal everywhere, as of "mean", allows no rejection rate.
    model.calibrate(held_out.data, MaxWidth(ANY_WIDTH))
    yield from (
        each
        for each in evaluated(model.predict(test.features), test.targets)
        if each.score == "conformal"
    )


def _unlike(
    place: Split, model: Regressor, train: data.Part, test: data.Part
) -> Iterator[Measured]:
    """AUROC against noise, and against another set scaled alike: the next one in the order."""
    names = list(data.SETS)
    other = names[(names.index(place.name) + 1) % len(names)]
    foreign = data.split(place.root, other, place.number % data.num_splits(place.root, other))[1]
    known = model.predict(test.features)
    noise = data.noise(train, len(test), place.number)
    for task, inputs in (("foreign", data.alike(train, foreign.features)), ("noise", noise)):
        yield from separated(task, known, model.predict(inputs))


def _extrapolated(
    place: Split, trained: Trained, train: data.Part, test: data.Part, hidden: int
) -> Iterator[Measured]:
    """Coverage, error and AUROC on the tenth with the largest first principal component, left out."""
    inside, outside = data.extrapolation(train, test)
    fitting, known = data.validation(inside, place.number, share=0.1)
    model = train_one(fitting, trained.method, trained.chosen, hidden, place.number)
    keep_residuals(model, trained.regressor)
    p = model.predict(outside.features)
    yield from separated("extrapolation", model.predict(known.features), p)
    for each in evaluated(p, outside.targets):
        yield each._replace(task="extrapolation")


def separated(
    task: str, known: RegressionPrediction, unlike: RegressionPrediction
) -> Iterator[Measured]:
    """AUROC of every score, and of the total variance."""
    inside, outside = scores(known), scores(unlike)
    for name, values in inside.items():
        yield Measured(task, name, "auroc", auroc(values, outside[name]))


def scores(p: RegressionPrediction) -> dict[str, Tensor]:
    """The scores of a prediction and its total variance, finite."""
    largest = torch.finfo(torch.float64).max
    named = {**p.scores(), "total": p.variance}
    return {name: each.double().clamp(-largest, largest) for name, each in named.items()}
