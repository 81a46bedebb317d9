"""Methods for regression, one file each; `METHODS` maps their names to classes."""

from daedl.methods.regression.base import RegressionMethod
from daedl.methods.regression.beta_nll import BetaNLL
from daedl.methods.regression.daer import DAER
from daedl.methods.regression.dropout import GaussianDropout
from daedl.methods.regression.ensemble import GaussianEnsemble
from daedl.methods.regression.evidential import EvidentialRegression
from daedl.methods.regression.gaussian import GaussianNLL
from daedl.methods.regression.mean import Mean
from daedl.methods.table import Table

# Names differ from those of classification, because a model file contains the name only.
_TABLE = Table(__name__, __path__, RegressionMethod, "daer")  # type: ignore[type-abstract]
METHODS = _TABLE.methods
build, rebuild = _TABLE.build, _TABLE.rebuild

__all__ = [
    "DAER",
    "METHODS",
    "BetaNLL",
    "EvidentialRegression",
    "GaussianDropout",
    "GaussianEnsemble",
    "GaussianNLL",
    "Mean",
    "RegressionMethod",
    "build",
    "rebuild",
]
