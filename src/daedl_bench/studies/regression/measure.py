"""Figures of one method on one split: accuracy, calibration, and OOD inputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from daedl.evaluate import Measured
from daedl.methods import regression
from daedl.regression_evaluation import regression as evaluated
from daedl.regression_evaluation import separated
from daedl.regressor import Regressor
from daedl.selective import MaxWidth
from daedl_bench.spec import digest
from daedl_bench.studies.regression import data
from daedl_bench.studies.regression.training import CANDIDATES, VARIANTS, select

# The splits on which conformal intervals and OOD inputs are measured, which need further trainings.
FIRST_SPLITS = range(5)
HIDDEN = {"protein": 100}
# Of the training part held out for conformal intervals, and of the inside to compare the outside with.
CALIBRATION, KNOWN = 0.2, 0.1
OTHER_SEED = 1000  # for held-out parts that differ from those of the selection (chosen)
# Of what is done with training and held-out parts: rows of another protocol are measured again.
PROTOCOL = 2
ANY_WIDTH = 1e300  # accepts every interval


class Split(NamedTuple):
    """A set, the number of the split, and the root of the data."""

    root: Path
    name: str
    number: int


def key(name: str, number: int, method: str) -> str:
    """Identifies the rows of a method with its present settings on a split."""
    settings = [regression.build(method).arguments(), list(CANDIDATES)]
    variants = [each.arguments() for each in VARIANTS.get(method, ())]
    return digest([PROTOCOL, name, number, method, *settings, *variants])


def measure(place: Split, method: str) -> Iterator[Measured]:
    """All figures of `method` on a split."""
    train, test = data.split(*place)
    hidden = HIDDEN.get(place.name, 50)
    trained = select(train, method, hidden, place.number)
    yield Measured("training", "", "steps", float(trained.chosen.steps))
    yield Measured("training", "", "spectral", float(trained.method.spectral is not None))
    yield from evaluated(trained.regressor.predict(test.features), test.targets)
    if place.number in FIRST_SPLITS:
        yield from _conformal(train, test, method, hidden, place.number)
        yield from _unlike(place, trained.regressor, train, test)
        yield from _extrapolated(train, test, method, hidden, place.number)


def _conformal(
    train: data.Part, test: data.Part, method: str, hidden: int, seed: int
) -> Iterator[Measured]:
    """Coverage and width of conformal intervals.

    The calibration part is seen neither by the training nor by the selection, so that it is exchangeable with
    the test part.
    """
    fitting, held_out = calibration_part(train, seed)
    model = select(fitting, method, hidden, seed).regressor
    # Intervals only: a variance that is equal everywhere, as of "mean", allows no rejection rate.
    model.calibrate(held_out.data, MaxWidth(ANY_WIDTH))
    yield from (
        each
        for each in evaluated(model.predict(test.features), test.targets)
        if each.score == "conformal"
    )


def calibration_part(train: data.Part, seed: int) -> tuple[data.Part, data.Part]:
    """The training part without and with what calibrates conformal intervals."""
    return data.validation(train, seed + OTHER_SEED, CALIBRATION)


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
    train: data.Part, test: data.Part, method: str, hidden: int, seed: int
) -> Iterator[Measured]:
    """Coverage, error and AUROC on the tenth with the largest first principal component.

    It is left out of the selection too: candidate, evidence and residuals are those of the inside.
    """
    fitting, known, outside = outside_parts(train, test, seed)
    model = select(fitting, method, hidden, seed).regressor
    p = model.predict(outside.features)
    yield from separated("extrapolation", model.predict(known.features), p)
    for each in evaluated(p, outside.targets):
        yield each._replace(task="extrapolation")


def outside_parts(
    train: data.Part, test: data.Part, seed: int
) -> tuple[data.Part, data.Part, data.Part]:
    """What is trained on, held-out samples of the same kind, and what is left out."""
    inside, outside = data.extrapolation(train, test)
    return *data.validation(inside, seed + OTHER_SEED, KNOWN), outside
