"""Methods, one file a paper, and the table to build them by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from daedl.methods.base import Method
from daedl.methods.daedl import DAEDL
from daedl.methods.edl import EDL
from daedl.methods.edl_plus import EDLPlus
from daedl.methods.softmax import Softmax
from daedl.names import look_up

METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {method.name: method for method in (Softmax, EDL, EDLPlus, DAEDL)}
)


def build(name: str, **arguments: Any) -> Method:
    """Build a method by its name in `METHODS`."""
    return look_up(METHODS, name, "method")(**arguments)


__all__ = ["DAEDL", "EDL", "METHODS", "EDLPlus", "Method", "Softmax", "build"]
