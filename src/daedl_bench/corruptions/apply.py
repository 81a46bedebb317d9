"""Corrupting a batch of images."""

import numpy as np
import torch
from torch import Tensor

from daedl.names import look_up
from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.table import FAMILIES, Corruption, Family

# Images worked on at once: fog of MNIST-C takes 0.5 MB an image and a few copies (chosen).
_AT_ONCE = 100


def corrupt(
    images: Tensor, name: str, severity: int, family: str, seed: int = 0, first: int = 0
) -> Tensor:
    """`images` with one corruption, as it is published for the data set.

    Each image draws from (seed, family, name, severity, its index), so that the result depends neither
    on the batch nor on the machine's state: corrupting a set in parts gives what corrupting it whole
    gives, if each part says where it starts.

    Args:
        images: (N, C, H, W) uint8, not changed: (N, 1, 28, 28) for MNIST-C, (N, 3, 32, 32) for CIFAR-10-C.
        name: of the corruption, a key of `FAMILIES[family].corruptions`.
        severity: 1 to 5 for CIFAR-10-C; MNIST-C is published with one, 1.
        family: "mnist-c" or "cifar10-c".
        seed: at least 0.
        first: the index of the first image in its set.

    Returns:
        (N, C, H, W) uint8. Values are cut to [0, 255] and rounded as published, for CIFAR-10-C down.
    """
    kind = look_up(FAMILIES, family, "family of corruptions")
    corruption = look_up(kind.corruptions, name, f"corruption of {kind.title}")
    require_images(images, kind)
    _require_severity(severity, name, corruption, kind)
    for value, what in ((seed, "seed"), (first, "first")):
        if value < 0:
            raise ValueError(f"{what} is {value}; expected 0 or more: pass e.g. {what}=0")
    result = np.empty(images.shape, dtype=np.uint8)
    levels = images.cpu().numpy()
    for start in range(0, len(images), _AT_ONCE):
        part: Array = levels[start : start + _AT_ONCE] / 255.0
        draws = Draws(seed, f"{family}/{name}", severity, first + start, len(part))
        changed = corruption.function(part, draws, **corruption.parameters[severity - 1])
        grey = changed.clip(0.0, 1.0) * 255
        result[start : start + _AT_ONCE] = np.rint(grey) if kind.rounded else grey
    return torch.from_numpy(result).to(images.device)


def require_images(images: Tensor, family: Family) -> None:
    """Raise unless `images` are uint8 and of the shape that `family` is defined for."""
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images are a {type(images).__name__}; expected a torch.Tensor: convert with "
            "torch.as_tensor(images)"
        )
    expected = (family.channels, family.side, family.side)
    if images.ndim != 4 or tuple(images.shape[1:]) != expected:
        raise ValueError(
            f"images have shape {tuple(images.shape)}; {family.title} is defined for (N, "
            f"{', '.join(map(str, expected))}), channels first: {_remedy(images, family)}"
        )
    if images.dtype != torch.uint8:
        raise TypeError(
            f"images are {images.dtype}; expected torch.uint8 with values 0 to 255: convert with "
            "(255 * images).round().to(torch.uint8) if they are in [0, 1]"
        )


def _remedy(images: Tensor, family: Family) -> str:
    side = family.side
    if images.ndim == 3 and tuple(images.shape[1:]) == (side, side):
        return "add the channel axis with images.unsqueeze(1)"
    if tuple(images.shape[1:]) == (side, side, family.channels):
        return "move the channels with images.permute(0, 3, 1, 2)"
    if tuple(images.shape) == (family.channels, side, side):
        return "add the batch axis with images.unsqueeze(0)"
    return "its parameters are in pixels, so resize the images first, or take the other family"


def _require_severity(severity: int, name: str, corruption: Corruption, family: Family) -> None:
    if severity in corruption.severities:
        return
    last = corruption.severities[-1]
    expected = "1, the only one that is published" if last == 1 else f"1 to {last}"
    raise ValueError(
        f"severity {severity!r} of {name}; {family.title} has {expected}: pass one of "
        f"{', '.join(map(str, corruption.severities))}"
    )
