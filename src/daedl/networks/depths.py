"""Feature vectors from the outputs of one or several blocks of a network."""

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from daedl.names import look_up

Pooling = Literal["flatten", "mean", "mean-std"]
# One block, several, "last" (the block of the paper's choice), or None for the network's own default.
Features = str | Sequence[str] | None
LAST = "last"


def pool(maps: Tensor, pooling: Pooling) -> Tensor:
    """Pool the output (B, C, ...) of a block over all positions of each channel; vectors (B, C) are kept.

    Returns (B, C) for "mean", (B, 2 C) for "mean-std", the means and then the standard deviations
    (divided by the number of positions), and all values for "flatten". Pooling is 1-Lipschitz.
    """
    if pooling == "flatten" or maps.ndim < 3:
        return maps.flatten(1)
    rows = maps.flatten(2)
    mean = rows.mean(2)
    if pooling == "mean":
        return mean
    # Unlike √variance, the norm has a finite gradient for constant channels.
    spread = torch.linalg.vector_norm(rows - mean[..., None], dim=2) / math.sqrt(rows.shape[2])
    return torch.cat([mean, spread], 1)


def chosen(
    features: Features, pooling: Pooling | None, depths: Sequence[str], blocks: Iterable[str]
) -> tuple[tuple[str, ...], Pooling]:
    """Names of the blocks, in the order of `blocks`, and the pooling.

    Arguments:
        features: selected block or blocks.
        pooling: None is "mean-std" for a default of several blocks, otherwise "flatten".
        depths: the network's default, which ends with the block that `LAST` selects.
        blocks: names of all blocks that may be selected.
    """
    order = {name: number for number, name in enumerate(blocks)}
    if pooling is not None:
        look_up(dict.fromkeys(get_args(Pooling)), pooling, "pooling")
    default: Pooling = "mean-std" if features is None and len(depths) > 1 else "flatten"
    if features is None:
        features = depths
    elif features == LAST and LAST not in order and depths:
        features = depths[-1]
    names = [features] if isinstance(features, str) else list(features)
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"features are {features!r}; expected one or several different blocks: name each block once"
        )
    for name in names:
        look_up(order, name, "block for `features`")
    return tuple(sorted(names, key=order.__getitem__)), pooling or default


def constructor_arguments(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON-serialisable values of the constructor's arguments among `values`, such as its `locals()`."""
    names = [name for name in inspect.signature(kind).parameters if name in values]
    return {name: _plain(values[name]) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
