"""A case of the panel: data, and how a classifier is trained on them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from daedl.classifier import Classifier
from daedl.data.loaders import Data


class Sets(NamedTuple):
    """Datasets in the form that one classifier takes; OOD sets have arbitrary labels.

    Attributes:
        train: for post-hoc fits.
        calibration: known samples that training did not use; thresholds and temperatures are fitted to them.
        test: known samples.
        near: OOD sets that resemble the known samples.
        far: OOD sets that no known sample resembles.
    """

    train: Data
    calibration: Data
    test: Data
    near: Mapping[str, Data]
    far: Mapping[str, Data]


class Trained(NamedTuple):
    """A classifier with its method, CPU seconds of training and fit, and the datasets as it takes them."""

    classifier: Classifier
    seconds: float
    sets: Sets


# Trains the method of this name, with settings as keyword arguments, JSON-serialisable.
Train = Callable[..., Trained]


class Case(NamedTuple):
    """One row of the panel.

    Attributes:
        title: in tables.
        load: returns a training function, given the seed and the data root (None for the default).
    """

    title: str
    load: Callable[[int, Path | None], Train]
