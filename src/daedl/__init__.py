"""Density aware evidential deep learning: a classifier that knows when it doesn't know.

model = daedl.Classifier(daedl.networks.ConvNet(in_channels=1, num_classes=10))
daedl.fit(model, train_loader, val_loader)
p = model.predict(images)
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from daedl import (
    density,
    losses,
    methods,
    metrics,
    networks,
)
from daedl.checks import NotFittedError
from daedl.classifier import Classifier
from daedl.data import DataWarning, ImageSet, Preprocess
from daedl.density import DensityEffect, DensityWarning
from daedl.dirichlet import Dirichlet
from daedl.members import ensemble
from daedl.outputs import Outputs, collect
from daedl.prediction import Prediction
from daedl.selective import MaxErrorRate, MaxRejectionRate, Thresholds
from daedl.spectral import SpectralNorm, lipschitz_bound, remove_spectral_norm, spectral_normalize
from daedl.training import History, fit

if TYPE_CHECKING:
    from daedl.estimator import DAEDLClassifier

__version__ = version("daedl")

__all__ = [
    "Classifier",
    "DAEDLClassifier",
    "DataWarning",
    "DensityEffect",
    "DensityWarning",
    "Dirichlet",
    "History",
    "ImageSet",
    "MaxErrorRate",
    "MaxRejectionRate",
    "NotFittedError",
    "Outputs",
    "Prediction",
    "Preprocess",
    "SpectralNorm",
    "Thresholds",
    "collect",
    "density",
    "ensemble",
    "fit",
    "lipschitz_bound",
    "losses",
    "methods",
    "metrics",
    "networks",
    "remove_spectral_norm",
    "spectral_normalize",
]


def __getattr__(name: str) -> Any:
    """Imports the scikit-learn estimator when it is used: scikit-learn takes half a second to import."""
    if name == "DAEDLClassifier":
        from daedl.estimator import DAEDLClassifier  # noqa: PLC0415

        return DAEDLClassifier
    raise AttributeError(f"module 'daedl' has no attribute {name!r}")
