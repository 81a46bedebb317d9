"""Density aware evidential deep learning: a classifier that knows when it doesn't know.

model = daedl.Classifier(daedl.networks.ConvNet(in_channels=1, num_classes=10))
daedl.fit(model, train_loader, val_loader)
p = model.predict(images)

Names are imported when they are used, so that `import daedl` costs nothing and `daedl --help` needs no torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daedl import density, losses, methods, metrics, networks
    from daedl.checks import DataWarning, NotFittedError
    from daedl.classifier import Classifier
    from daedl.data import ImageSet, Preprocess
    from daedl.density import DensityEffect, DensityWarning
    from daedl.dirichlet import Dirichlet
    from daedl.estimator import DAEDLClassifier
    from daedl.loading import load
    from daedl.members import ensemble
    from daedl.nig import NIG
    from daedl.outputs import Outputs
    from daedl.prediction import Prediction
    from daedl.regression_estimator import DAEDLRegressor
    from daedl.regression_prediction import RegressionPrediction
    from daedl.regressor import Regressor
    from daedl.scorer import Scorer
    from daedl.selective import MaxErrorRate, MaxRejectionRate, MaxWidth, Thresholds
    from daedl.spectral import (
        SpectralNorm,
        lipschitz_bound,
        remove_spectral_norm,
        spectral_normalize,
    )
    from daedl.training import Callback, ChanceWarning, History, fit_frozen
    from daedl.training.fit import fit

_SUBMODULES = ("density", "losses", "methods", "metrics", "networks")
# The public names of each module, which is imported when one of them is used.
_NAMES = {
    "checks": "DataWarning NotFittedError",
    "classifier": "Classifier",
    "data": "ImageSet Preprocess",
    "density": "DensityEffect DensityWarning",
    "dirichlet": "Dirichlet",
    "estimator": "DAEDLClassifier",
    "loading": "load",
    "members": "ensemble",
    "nig": "NIG",
    "outputs": "Outputs",
    "prediction": "Prediction",
    "regression_estimator": "DAEDLRegressor",
    "regression_prediction": "RegressionPrediction",
    "regressor": "Regressor",
    "scorer": "Scorer",
    "selective": "MaxErrorRate MaxRejectionRate MaxWidth Thresholds",
    "spectral": "SpectralNorm lipschitz_bound remove_spectral_norm spectral_normalize",
    "training": "Callback ChanceWarning History fit fit_frozen",
}
_SOURCES = {name: module for module, names in _NAMES.items() for name in names.split()}

__version__ = version("daedl")

__all__ = [
    "NIG",
    "Callback",
    "ChanceWarning",
    "Classifier",
    "DAEDLClassifier",
    "DAEDLRegressor",
    "DataWarning",
    "DensityEffect",
    "DensityWarning",
    "Dirichlet",
    "History",
    "ImageSet",
    "MaxErrorRate",
    "MaxRejectionRate",
    "MaxWidth",
    "NotFittedError",
    "Outputs",
    "Prediction",
    "Preprocess",
    "RegressionPrediction",
    "Regressor",
    "Scorer",
    "SpectralNorm",
    "Thresholds",
    "density",
    "ensemble",
    "fit",
    "fit_frozen",
    "lipschitz_bound",
    "load",
    "losses",
    "methods",
    "metrics",
    "networks",
    "remove_spectral_norm",
    "spectral_normalize",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"daedl.{name}")
    if name not in _SOURCES:
        raise AttributeError(f"module 'daedl' has no attribute {name!r}")
    value = getattr(import_module(f"daedl.{_SOURCES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
