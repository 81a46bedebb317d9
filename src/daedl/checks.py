"""What is checked where data enter: each error says what arrived, what was expected, what to do.

`where` says which batch a tensor belongs to, as in " of batch 3 of the training data".
"""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

LABEL_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class NotFittedError(RuntimeError):
    """Something was asked of a classifier before it was fitted."""


class DataWarning(UserWarning):
    """Data can be used, but differ from what was expected."""


def require_finite(tensor: Tensor, name: str, where: str = "") -> None:
    """Raise if `tensor` holds a NaN or an infinity: how many, where the first is, in which tensor.

    The sum is looked at first: it is finite unless an element isn't (or it overflows), so that the
    usual case costs one reduction and no temporary the size of the tensor. While a graph is traced
    nothing is looked at: it has no values yet, and can't branch on them.
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
        f"{first}; expected finite values. Look for missing or unscaled inputs, or lower the "
        "learning rate if this appeared during training"
    )


def require_batch(batch: Any, where: str) -> tuple[Any, Tensor, Tensor | None]:
    """Returns inputs, labels and, where there are any, sample weights of `batch`.

    Raises unless it is a tuple of two or three arrays or tensors.
    """
    tuples = isinstance(batch, tuple | list) and len(batch) in (2, 3)
    if tuples and all(hasattr(part, "__array__") for part in batch):
        weights = torch.as_tensor(batch[2]) if len(batch) == 3 else None
        return batch[0], torch.as_tensor(batch[1]), weights
    arrived = f"a {type(batch).__name__}"
    if isinstance(batch, tuple | list):
        arrived += f" of {', '.join(type(part).__name__ for part in batch) or 'nothing'}"
    raise TypeError(
        f"the data{where} are {arrived}; expected a pair of tensors (inputs, labels), or three with sample "
        "weights: pass a DataLoader, a list of such pairs, or the pair of the whole set"
    )


def require_float(inputs: Tensor, where: str = "") -> None:
    """Raises unless `inputs` are floats, which a classifier without preprocessing needs."""
    if not inputs.is_floating_point():
        raise TypeError(
            f"inputs{where} are {inputs.dtype} but the classifier has no preprocessing; expected floats: "
            "convert them as for training, or give the classifier a Preprocess(...)"
        )


def require_targets(targets: Tensor, num_classes: int, batch_size: int, where: str = "") -> None:
    """Raise unless `targets` (B,) are integers from 0 to C-1, one for each of `batch_size` samples."""
    if targets.dtype not in LABEL_TYPES:
        raise TypeError(
            f"labels{where} are {targets.dtype}; expected integer class indices: convert with "
            "labels.long(), or labels.argmax(-1) if they are one-hot"
        )
    if tuple(targets.shape) != (batch_size,):
        raise ValueError(
            f"labels{where} have shape {tuple(targets.shape)}; expected ({batch_size},): "
            "one class index for each image"
        )
    if batch_size and (targets.min() < 0 or targets.max() >= num_classes):
        raise ValueError(
            f"labels{where} range from {int(targets.min())} to {int(targets.max())}; the network "
            f"has {num_classes} classes, so expected 0 to {num_classes - 1}: renumber the labels "
            "or build the network with more classes"
        )


def require_weights(weights: Tensor, number: int, where: str = "") -> None:
    """Raises unless `weights` are `number` finite floats from 0, not all of them 0."""
    if tuple(weights.shape) != (number,):
        raise ValueError(f"weights{where} have shape {tuple(weights.shape)}; expected ({number},)")
    require_finite(weights, "weights", where)
    if (weights < 0).any() or not (weights > 0).any():
        raise ValueError(
            f"weights{where} range from {float(weights.min()):g} to {float(weights.max()):g}; expected "
            "numbers from 0, at least one of them positive"
        )


def require_sizes(widths: Sequence[int] = (), **sizes: int) -> None:
    """Raise unless a network can be built from these: whole numbers from 1."""
    for name, size in sizes.items():
        require_whole(name, size, 1, "as many as the data have")
    for width in widths:
        require_whole("a width of hidden", width, 1, "64")


def require_above_zero(name: str, value: Any, remedy: str) -> None:
    """Raise unless `value` is a finite number above 0; `remedy` says what to take."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a finite number above 0: take {remedy}")


def require_whole(name: str, value: Any, least: int, remedy: str) -> None:
    """Raise unless `value` is a whole number from `least`; `remedy` says what to take."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(
            f"{name} is {value!r}; expected a whole number from {least}: take {remedy}"
        )
