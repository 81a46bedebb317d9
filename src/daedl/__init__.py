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
# The module that defines each public name.
_SOURCES = {
    "Callback": "training",
    "ChanceWarning": "training",
    "Classifier": "classifier",
    "DAEDLClassifier": "estimator",
    "DAEDLRegressor": "regression_estimator",
    "DataWarning": "checks",
    "DensityEffect": "density",
    "DensityWarning": "density",
    "Dirichlet": "dirichlet",
    "History": "training",
    "ImageSet": "data",
    "MaxErrorRate": "selective",
    "MaxRejectionRate": "selective",
    "MaxWidth": "selective",
    "NIG": "nig",
    "NotFittedError": "checks",
    "Outputs": "outputs",
    "Prediction": "prediction",
    "Preprocess": "data",
    "RegressionPrediction": "regression_prediction",
    "Regressor": "regressor",
    "Scorer": "scorer",
    "SpectralNorm": "spectral",
    "Thresholds": "selective",
    "ensemble": "members",
    "fit": "training",
    "fit_frozen": "training",
    "lipschitz_bound": "spectral",
    "load": "loading",
    "remove_spectral_norm": "spectral",
    "spectral_normalize": "spectral",
}

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
