"""Parses method settings from the command line, such as leave_one_out=true."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

import typer

from daedl import methods
from daedl.methods import METHODS, BaseMethod, Method
from daedl.names import look_up

M = TypeVar("M", bound=BaseMethod)

MethodSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Setting of the method, such as covariance=tied; may be repeated.",
    ),
]
# Case-insensitive, so that both the spelling of Python and that of JSON are valid.
WORDS: Mapping[str, bool | None] = MappingProxyType(
    {"true": True, "false": False, "none": None, "null": None}
)


def build(
    method: str, settings: Sequence[str], current: Mapping[str, Any] = MappingProxyType({})
) -> Method:
    """Builds the method named `method` with settings of the form NAME=VALUE, which change `current` ones."""
    return build_from(METHODS, methods.build, method, settings, current)


def build_from(
    table: Mapping[str, type[M]],
    construct: Callable[..., M],
    method: str,
    settings: Sequence[str],
    current: Mapping[str, Any] = MappingProxyType({}),
) -> M:
    """`build` for the methods of a table."""
    kind = look_up(table, method, "method")
    arguments = dict(_setting(kind, text) for text in settings)
    try:
        return construct(method, **{**current, **arguments})
    except TypeError as error:
        raise ValueError(f"invalid settings for {method}: {error}") from error


def change(method: Method, settings: Sequence[str]) -> Method:
    """Returns `method` with other settings of its post-hoc fit; raises for settings that need training."""
    if not method.needs_fit:
        raise ValueError(
            f"{method.name} fits nothing after training; expected a model of a method with a post-hoc fit, "
            "such as daedl: train another with `daedl train`"
        )
    current = {each.name: getattr(method, each.name) for each in fields(method)}
    for text in settings:
        changed = build(method.name, [text], current)
        if changed.training_method() != method.training_method():
            raise ValueError(
                f"the setting {text} of {method.name} changes the training; expected settings of the fit "
                "after training, such as covariance=tied: pass it to `daedl train` instead"
            )
        current = {each.name: getattr(changed, each.name) for each in fields(changed)}
    return build(method.name, [], current)


def _setting(kind: type[BaseMethod], text: str) -> tuple[str, Any]:
    name, sign, typed = text.partition("=")
    if not sign:
        raise ValueError(f"the setting is {text!r}; expected NAME=VALUE, such as kl_weight=0.1")
    default = look_up(kind.defaults(), name, f"setting of {kind.name}")
    (hint,) = (each.type for each in fields(kind) if each.name == name)
    value = _value(typed)
    if not _is_like(value, default) and not (
        isinstance(value, bool) and bool in get_args(hint)  # as in bool | Literal["auto"]
    ):
        raise ValueError(
            f"the setting {name} is {typed!r}; expected a value such as {_as_typed(default)}"
        )
    return name, value


def _as_typed(value: Any) -> str:
    """Formats `value` as typed on the command line; nested settings, such as SpectralNorm, as JSON."""
    if isinstance(value, BaseMethod):
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
    """Returns whether `value` is a boolean if and only if `default` is, and a number if `default` is.

    Without this check, the text "no" would count as true. The method validates everything else.
    """
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, int | float) or not isinstance(default, int | float)
