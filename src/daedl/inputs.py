"""Batches of inputs: a tensor, a tuple or mapping of tensors, or texts; one set of functions for all."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# A tensor, a tuple or a mapping of tensors with one row per sample, or a list of texts.
Inputs = Any
# Entries of a batch that is a mapping, besides its inputs.
LABELS, WEIGHTS = "labels", "weights"
# How descriptions of inputs of several parts start.
_MAPPING, _TUPLE = "a mapping with", "a tuple of"


def is_array(value: Any) -> bool:
    """Returns whether `value` is a tensor, or can be converted to an array."""
    return hasattr(value, "__array__")


def as_numbers(array: Any, name: str) -> Tensor:
    """Converts an array, or a column or table of pandas, to a tensor; `name` is for the error message."""
    if isinstance(array, Tensor):
        return array
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "biufc":
        raise TypeError(
            f"{name} are {numbers.dtype}; expected numbers: encode texts and categories as numbers, classes "
            "as 0, 1, 2, ..."
        )
    # pandas returns arrays that are read-only, of which PyTorch warns.
    return torch.as_tensor(numbers if numbers.flags.writeable else numbers.copy())


def is_text(value: Any) -> bool:
    """Returns whether `value` is a batch of texts."""
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(each, str) for each in value)
    )


def is_inputs(value: Any) -> bool:
    """Returns whether `value` has one of the forms of `Inputs`."""
    if isinstance(value, Mapping | list | tuple):
        return is_text(value) or (len(value) > 0 and all(map(is_array, parts_of(value))))
    return is_array(value)


def parts_of(inputs: Inputs) -> list[Any]:
    """Returns the tensors of `inputs`; texts are one part."""
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, list | tuple) and not is_text(inputs) else [inputs]


def convert(inputs: Inputs, change: Callable[[Any], Any]) -> Inputs:
    """Applies `change` to every part of `inputs`; a mapping becomes a dict, another sequence a tuple."""
    if isinstance(inputs, Mapping):
        return {name: change(each) for name, each in inputs.items()}
    if isinstance(inputs, list | tuple) and not is_text(inputs):
        return tuple(change(each) for each in inputs)
    return change(inputs)


def count_rows(inputs: Inputs, where: str = "") -> int:
    """Returns the number of samples; raises unless all parts have as many."""
    rows = [len(each) for each in parts_of(inputs)]
    if len(set(rows)) > 1:
        raise ValueError(
            f"the parts of the inputs{where} have {', '.join(map(str, rows))} rows; expected one row per "
            "sample in every part: pass as many rows in each"
        )
    return rows[0]


def select(inputs: Inputs, rows: Sequence[int] | Tensor) -> Inputs:
    """Returns the samples at the indices `rows`."""
    if is_text(inputs):
        return [inputs[int(row)] for row in rows]
    # Without a type, no rows at all would be floats.
    chosen = rows if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.long)
    return convert(inputs, lambda part: torch.as_tensor(part)[chosen])


def split(inputs: Inputs, size: int) -> list[Inputs]:
    """Splits `inputs` into batches of `size` samples."""
    starts = range(0, count_rows(inputs), size)
    if is_text(inputs):
        return [inputs[start : start + size] for start in starts]

    # A clone, because modules may change their inputs in place.
    def part(start: int) -> Inputs:
        return convert(inputs, lambda each: torch.as_tensor(each)[start : start + size].clone())

    return [part(start) for start in starts]


def join(batches: Sequence[Inputs]) -> Inputs:
    """Joins batches of the same form."""
    first = batches[0]
    if is_text(first):
        return [text for batch in batches for text in batch]
    joined = [torch.cat(each) for each in zip(*map(parts_of, batches), strict=True)]
    parts = iter(joined)
    return convert(first, lambda _: next(parts))


def is_labelled(batch: Any) -> bool:
    """Returns whether `batch` is (inputs, labels[, weights]), or a mapping with `labels`."""
    if isinstance(batch, Mapping) and LABELS not in batch:
        return False
    if not isinstance(batch, Mapping) and not (
        isinstance(batch, tuple | list) and len(batch) in (2, 3)
    ):
        return False
    inputs, *rest = unpacked(batch)
    return is_inputs(inputs) and all(map(is_array, rest))


def unpacked(batch: Any) -> tuple[Any, ...]:
    """Returns (inputs, labels[, weights]) of a labelled batch."""
    if not isinstance(batch, Mapping):
        return tuple(batch)
    rest = [batch[name] for name in (LABELS, WEIGHTS) if name in batch]
    return inputs_of(batch), *rest


def inputs_of(batch: Any) -> Inputs:
    """Returns the inputs of a batch with or without labels."""
    if isinstance(batch, Mapping):
        return {name: each for name, each in batch.items() if name not in (LABELS, WEIGHTS)}
    return batch[0] if isinstance(batch, tuple | list) and not is_text(batch) else batch


def arrange(columns: Mapping[str, Any], form: str) -> Inputs | None:
    """Returns `columns` as the mapping or tuple that `form`, see `form_of`, describes; None for others."""
    if form.startswith(_MAPPING):
        return dict(columns)
    return tuple(columns.values()) if form.startswith(_TUPLE) else None


def form_of(inputs: Inputs) -> str:
    """Describes what the batches of one dataset have in common; n are lengths that may differ.

    Names, numbers of dimensions, and integers or floats; of a single tensor of floats also the sizes.
    """
    if is_text(inputs):
        return "texts"
    if isinstance(inputs, Mapping):
        parts = [f"{name}: {_part(each)}" for name, each in sorted(inputs.items())]
        return f"{_MAPPING} {', '.join(parts)}"
    if isinstance(inputs, list | tuple):
        return f"{_TUPLE} {', '.join(_part(each) for each in inputs)}"
    return _part(inputs, inputs.shape[1:])


def require_form(inputs: Inputs, form: str, where: str = "") -> None:
    """Raises unless `inputs` have the form `form`, and all parts equally many rows."""
    if (arrived := form_of(inputs)) != form:
        raise ValueError(
            f"inputs{where} are {arrived}; expected {form}, as in the first batch: use one tokenizer and one "
            "collator for all data"
        )
    count_rows(inputs, where)


def as_input(
    array: Any,
    input_shape: Sequence[int],
    where: str = "",
    remedy: str = "resize or reshape them",
) -> Tensor:
    """Converts an array or tensor with one or more inputs to (B, *input_shape).

    Images may have channels last; grey images need no channel axis. `remedy` completes the error message.
    """
    shape = tuple(input_shape)
    if not is_array(array) and not isinstance(array, list | tuple):
        raise TypeError(
            f"inputs{where} are a {type(array).__name__}; the network expects one tensor of shape "
            f"(batch, {', '.join(map(str, shape))}): pass this tensor alone"
        )
    tensor = torch.as_tensor(array)
    for batch in (tensor, tensor.unsqueeze(0)):
        if tuple(batch.shape[1:]) == shape:
            return batch
    if len(shape) == 3:
        channels, height, width = shape
        if tuple(tensor.shape[-3:]) == (height, width, channels) and tensor.ndim in (3, 4):
            return as_input(tensor.movedim(-1, -3), shape)
        if channels == 1 and tuple(tensor.shape[-2:]) == (height, width) and tensor.ndim in (2, 3):
            return as_input(tensor.unsqueeze(-3), shape)
    hint = f", {shape[0]} channel(s) first or last" if len(shape) == 3 else ""
    raise ValueError(
        f"inputs{where} have shape {tuple(tensor.shape)}; the network expects "
        f"(batch, {', '.join(map(str, shape))}){hint}: {remedy}"
    )


def _part(tensor: Any, sizes: Sequence[int] | None = None) -> str:
    if isinstance(tensor, np.ndarray):
        tensor = torch.from_numpy(tensor)
    if not tensor.is_floating_point() or sizes is None:
        sizes = ["n"] * (tensor.ndim - 1)  # type: ignore[list-item]
    kind = "floats" if tensor.is_floating_point() else "integers"
    return f"{kind} ({', '.join(['batch', *map(str, sizes)])})"
