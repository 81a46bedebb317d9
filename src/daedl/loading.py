"""Loads a model file of either task."""

from pathlib import Path

from daedl.classifier import Classifier
from daedl.methods.regression import RegressionMethod
from daedl.model_file import read
from daedl.regressor import Regressor


def load(path: str | Path) -> Classifier | Regressor:
    """Reads a model file, on the CPU and in eval mode; see `Classifier.load` and `Regressor.load`."""
    parts = read(path, None, None)
    if isinstance(parts.method, RegressionMethod):
        return Regressor.from_parts(parts).eval()
    return Classifier.from_parts(parts).eval()
