"""Methods, one file per paper; `METHODS` maps their names to classes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from daedl.methods.adats import AdaTS
from daedl.methods.base import Method, Phase
from daedl.methods.daedl import DAEDL
from daedl.methods.ddu import DDU
from daedl.methods.dip_edl import DIPEDL
from daedl.methods.dropout import MCDropout
from daedl.methods.edl import EDL
from daedl.methods.edl_plus import EDLPlus
from daedl.methods.energy import Energy
from daedl.methods.ensemble import Ensemble, FittedMembers
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
from daedl.methods.temperature import TemperatureScaling
from daedl.methods.vim import ViM
from daedl.names import look_up, subclasses_in

# Every class with its own `name` in a module of this package: a new file needs no entry here.
_NAMED = [
    each
    for each in subclasses_in(__name__, __path__, Method)  # type: ignore[type-abstract]
    if "name" in vars(each)
]
METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {each.name: each for each in sorted(_NAMED, key=lambda each: each.name)}
)


def build(method: str | Method, **arguments: Any) -> Method:
    """Build a method by its name in `METHODS`; a `Method` is returned unchanged."""
    if isinstance(method, str):
        return build_for("", method, **arguments)
    if not isinstance(method, Method):
        raise TypeError(
            f"method is {method!r}; expected a name such as 'daedl', or a Method such as "
            "daedl.methods.DAEDL()"
        )
    if arguments:
        raise TypeError(
            f"method is a {type(method).__name__} and settings {sorted(arguments)} were passed too; expected "
            "one of them: pass the settings to the method"
        )
    return method


def build_for(data: str, name: str, **arguments: Any) -> Method:
    """Build a method with the settings published for a dataset, "mnist" or "cifar10".

    `arguments` take precedence over published settings, and these over defaults. `member`, the
    method of an ensemble's members, is a method, a name, or {"name": ..., "arguments": ...}.
    """
    method = look_up(METHODS, name, "method")
    for setting in arguments:
        look_up(method.defaults(), setting, f"setting of {name}")
    arguments = {**method.published.get(data, {}), **arguments}
    match arguments.get("member"):
        case str(member):
            arguments["member"] = build_for(data, member)
        case {"name": member, "arguments": of_member}:
            arguments["member"] = rebuild(member, of_member)
    return method(**arguments)


def rebuild(name: str, arguments: Mapping[str, Any]) -> Method:
    """Rebuild a method from its `arguments()`, such as those in a model file.

    Settings that did not exist when the file was written have the values that reproduce its predictions,
    which need not be their defaults.
    """
    return build(name, **{**look_up(METHODS, name, "method").since, **arguments})


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
    "EDLPlus",
    "Energy",
    "Ensemble",
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
]
