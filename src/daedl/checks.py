"""Validation of user input. Each error states what arrived, what was expected, and what to do.

`where` names the batch of a tensor, as in " of batch 3 of the training data".
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from daedl.inputs import LABELS, as_numbers, is_labelled, unpacked
from daedl.names import suggestion

LABEL_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class NotFittedError(RuntimeError):
    """A classifier was used before it was fitted."""


class DataWarning(UserWarning):
    """The data are usable but differ from what was expected."""


def import_optional(package: str, purpose: str, install: str) -> Any:
    """Imports `package`; if it can't be imported, the error names the command that installs it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{package} can't be imported ({error}); expected it for {purpose}: pip install {install}"
        ) from error


def require_finite(tensor: Tensor, name: str, where: str = "") -> None:
    """Raises if `tensor` contains NaN or infinity, with their number and the index of the first.

    The sum is tested first: it is finite unless an element is not, or it overflows. The usual case thus
    costs one reduction and no temporary tensor. Skipped while a graph is traced, because the tensor has
    no values then.
    """
    if torch.compiler.is_compiling():
        return
    if torch.isfinite(tensor.sum()):
        return
    bad = ~torch.isfinite(tensor)
    count = int(bad.sum())
    if count == 0:
        return
    first = tuple(int(i) for i in bad.nonzero()[0])
    raise ValueError(
        f"{name}{where}: {count} of {tensor.numel()} values are NaN or infinite, the first at index "
        f"{first}; expected finite values: check for missing or unscaled inputs, or lower the "
        "learning rate if this happened during training"
    )


def require_batch(batch: Any, where: str) -> tuple[Any, Tensor, Tensor | None]:
    """Returns the inputs, labels and sample weights (None without weights) of `batch`.

    Raises unless `batch` is (inputs, labels) or (inputs, labels, weights), or a mapping with `labels`.
    """
    if is_labelled(batch):
        inputs, labels, *weights = unpacked(batch)
        found = as_numbers(weights[0], f"sample weights{where}") if weights else None
        return inputs, as_numbers(labels, f"labels{where}"), found
    arrived = f"a {type(batch).__name__}"
    if isinstance(batch, Mapping):
        arrived += f" with {', '.join(map(str, batch)) or 'nothing'}"
    elif isinstance(batch, tuple | list):
        kinds = [type(part).__name__ for part in batch[:4]]
        arrived += f" of {', '.join(kinds) or 'nothing'}{', ...' if len(batch) > 4 else ''}"
    raise TypeError(
        f"the data{where} are {arrived}; expected a pair of tensors (inputs, labels), three tensors with "
        f"sample weights, or a mapping of tensors with {LABELS!r}: pass a DataLoader, a list of such "
        "batches, or one with the whole dataset"
    )


def require_float(inputs: Tensor, where: str = "") -> None:
    """Raises unless `inputs` are floats, which a classifier without preprocessing requires."""
    if not inputs.is_floating_point():
        raise TypeError(
            f"inputs{where} are {inputs.dtype} but the classifier has no preprocessing; expected floats: "
            "convert them as for training, or give the classifier a Preprocess(...)"
        )


def require_targets(targets: Tensor, num_classes: int, batch_size: int, where: str = "") -> None:
    """Raises unless `targets` (B,) are integers from 0 to C − 1, one for each of `batch_size` samples."""
    if targets.dtype not in LABEL_TYPES:
        raise TypeError(
            f"labels{where} are {targets.dtype}; expected integer class indices: convert with "
            "labels.long(), or labels.argmax(-1) if they are one-hot"
        )
    if tuple(targets.shape) != (batch_size,):
        raise ValueError(
            f"labels{where} have shape {tuple(targets.shape)}; expected ({batch_size},): pass one class "
            "index per input"
        )
    if batch_size and (targets.min() < 0 or targets.max() >= num_classes):
        raise ValueError(
            f"labels{where} range from {int(targets.min())} to {int(targets.max())}; expected 0 to "
            f"{num_classes - 1} for {num_classes} classes: renumber the labels, or increase the number "
            "of classes"
        )


def require_weights(weights: Tensor, number: int, where: str = "") -> None:
    """Raises unless `weights` are `number` finite, non-negative values that are not all 0."""
    if tuple(weights.shape) != (number,):
        raise ValueError(f"weights{where} have shape {tuple(weights.shape)}; expected ({number},)")
    require_finite(weights, "weights", where)
    if (weights < 0).any() or not (weights > 0).any():
        raise ValueError(
            f"weights{where} range from {float(weights.min()):g} to {float(weights.max()):g}; expected "
            "non-negative numbers, at least one of them positive"
        )


def require_sizes(widths: Sequence[int] = (), **sizes: int) -> None:
    """Raises unless all hidden `widths` and named `sizes` of a network are positive integers."""
    for name, size in sizes.items():
        require_whole(name, size, 1, "the value that matches the data")
    for width in widths:
        require_whole("a width of hidden", width, 1, "64")


@dataclass(frozen=True)
class Number:
    """Valid values of a number: finite, from `least` to below `limit`; `least` is excluded if `above`."""

    least: float = -sys.float_info.max
    above: bool = False
    limit: float = math.inf
    whole: bool = False

    def require(self, name: str, value: Any, remedy: str) -> None:
        """Raises unless `value` is valid; `remedy` names a valid value."""
        wrong = isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real)
        if wrong or not self.least <= value < self.limit or (self.above and value == self.least):
            raise ValueError(f"{name} is {value!r}; expected {self}: use {remedy}")

    def __str__(self) -> str:
        text = "an integer" if self.whole else "a finite number"
        if self.least > -sys.float_info.max:
            text += f" {'above' if self.above else 'of at least'} {self.least:g}"
        return f"{text} and below {self.limit:g}" if self.limit < math.inf else text


# Types of settings, validated by `require_settings`.
Count = Annotated[int, Number(1, whole=True)]
Whole = Annotated[int, Number(0, whole=True)]
Positive = Annotated[float, Number(0, above=True)]
NonNegative = Annotated[float, Number(0)]


def require_settings(settings: Any) -> None:
    """Raises unless the fields of a dataclass have values that their types allow.

    Covers bool, Literal, and numbers such as `Count` and `Positive | None`; other types are not checked.
    """
    for field in fields(settings):
        name, value, hint = field.name, getattr(settings, field.name), field.type
        if hint is bool and not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}; expected True or False: use {field.default}")
        if get_origin(hint) is Literal and value not in get_args(hint):
            known = ", ".join(map(repr, get_args(hint)))
            raise ValueError(
                f"{name} is {value!r}; expected one of {known}{suggestion(value, get_args(hint))}"
            )
        optional = value is None and type(None) in get_args(hint)
        for part in () if optional else (hint, *get_args(hint)):
            for number in getattr(part, "__metadata__", ()):
                number.require(name, value, repr(field.default))


def require_above_zero(name: str, value: Any, remedy: str) -> None:
    """Raises unless `value` is a finite number above 0; `remedy` names a valid value."""
    Number(0, above=True).require(name, value, remedy)


def require_whole(name: str, value: Any, least: int, remedy: str) -> None:
    """Raises unless `value` is an integer of at least `least`; `remedy` names a valid value."""
    Number(least, whole=True).require(name, value, remedy)
