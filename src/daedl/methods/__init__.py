"""Methods, one file per paper; `METHODS` maps their names to classes."""

from collections.abc import Mapping
from typing import Any

from daedl.methods import regression
from daedl.methods.adats import AdaTS
from daedl.methods.base import BaseMethod, Method, Phase
from daedl.methods.daedl import DAEDL
from daedl.methods.ddu import DDU
from daedl.methods.dip_edl import DIPEDL
from daedl.methods.dropout import MCDropout
from daedl.methods.edl import EDL
from daedl.methods.edl_plus import EDLPlus
from daedl.methods.energy import Energy
from daedl.methods.ensemble import Ensemble
from daedl.methods.ensembled import Ensembled, FittedMembers
from daedl.methods.f_edl import FEDL
from daedl.methods.gen import GEN
from daedl.methods.i_edl import IEDL
from daedl.methods.kl_pn import KLPN
from daedl.methods.knn import NearestNeighbours
from daedl.methods.logitnorm import LogitNorm
from daedl.methods.mahalanobis import Mahalanobis
from daedl.methods.mahalanobis_plus import MahalanobisPlus
from daedl.methods.max_logit import MaxLogit
from daedl.methods.natpn import NatPN
from daedl.methods.nuq import NUQ
from daedl.methods.postnet import PostNet
from daedl.methods.r_edl import REDL
from daedl.methods.re_edl import ReEDL
from daedl.methods.relative_mahalanobis import RelativeMahalanobis
from daedl.methods.retrofit import Retrofit
from daedl.methods.rkl_pn import RKLPN
from daedl.methods.sngp import SNGP
from daedl.methods.softmax import Softmax
from daedl.methods.table import Table
from daedl.methods.temperature import TemperatureScaling
from daedl.methods.vim import ViM

_TABLE = Table(__name__, __path__, Method)  # type: ignore[type-abstract]
METHODS = _TABLE.methods
build, build_for = _TABLE.build, _TABLE.build_for


def rebuild(name: str, arguments: Mapping[str, Any]) -> BaseMethod:
    """Rebuild a method of either task from its `arguments()`; see `Table.rebuild`."""
    numbers = name in regression.METHODS
    return regression.rebuild(name, arguments) if numbers else _TABLE.rebuild(name, arguments)


__all__ = [
    "DAEDL",
    "DDU",
    "DIPEDL",
    "EDL",
    "FEDL",
    "GEN",
    "IEDL",
    "KLPN",
    "METHODS",
    "NUQ",
    "REDL",
    "RKLPN",
    "SNGP",
    "AdaTS",
    "BaseMethod",
    "EDLPlus",
    "Energy",
    "Ensemble",
    "Ensembled",
    "FittedMembers",
    "LogitNorm",
    "MCDropout",
    "Mahalanobis",
    "MahalanobisPlus",
    "MaxLogit",
    "Method",
    "NatPN",
    "NearestNeighbours",
    "Phase",
    "PostNet",
    "ReEDL",
    "RelativeMahalanobis",
    "Retrofit",
    "Softmax",
    "TemperatureScaling",
    "ViM",
    "build",
    "build_for",
    "rebuild",
    "regression",
]
