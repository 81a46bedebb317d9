"""Settings of a method as they are typed: leave_one_out=true."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from types import MappingProxyType
from typing import Any

from daedl import methods
from daedl.methods import METHODS, Method
from daedl.names import look_up

# As Python spells them, and as JSON does.
WORDS: Mapping[str, bool | None] = MappingProxyType(
    {"true": True, "false": False, "none": None, "null": None}
)


def build(method: str, settings: Sequence[str]) -> Method:
    """The method of this name with these settings, each NAME=VALUE."""
    kind = look_up(METHODS, method, "method")
    arguments = dict(_setting(kind, text) for text in settings)
    try:
        return methods.build(method, **arguments)
    except TypeError as error:
        raise ValueError(f"{method} refuses its settings: {error}") from error


def _setting(kind: type[Method], text: str) -> tuple[str, Any]:
    name, sign, typed = text.partition("=")
    if not sign:
        raise ValueError(f"the setting is {text!r}; expected NAME=VALUE, as in kl_weight=0.1")
    default = look_up(kind.defaults(), name, f"setting of {kind.name}")
    value = _value(typed)
    if not _is_like(value, default):
        raise ValueError(
            f"the setting {name} is {typed!r}; expected a value such as {_as_typed(default)}"
        )
    return name, value


def _as_typed(value: Any) -> str:
    """`value` as one types it: settings of a part, such as SpectralNorm, as an object of JSON."""
    if isinstance(value, Method):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.dumps(value, default=repr)


def _value(typed: str) -> Any:
    if typed.lower() in WORDS:
        return WORDS[typed.lower()]
    try:
        return json.loads(typed)
    except json.JSONDecodeError:
        return typed


def _is_like(value: Any, default: Any) -> bool:
    """Whether `value` is a truth value, or a number, if `default` is: else "no" would pass for true.

    What other values may be, the method itself checks.
    """
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, int | float) or not isinstance(default, int | float)
