"""The kinds of inputs by name, as in model files."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from daedl.data.kind import InputKind
from daedl.data.preprocess import Preprocess
from daedl.data.texts import TextPreprocess
from daedl.names import look_up

KINDS: Mapping[str, type[InputKind]] = MappingProxyType(
    {kind.kind: kind for kind in (Preprocess, TextPreprocess)}
)


def restore(settings: Mapping[str, Any]) -> InputKind:
    """Rebuilds a kind from its `settings()`."""
    arguments = dict(settings)
    kind = look_up(KINDS, arguments.pop("kind", Preprocess.kind), "kind of inputs")
    return kind.restore(arguments)
