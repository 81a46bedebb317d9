"""Corruption of a batch of images."""

import numpy as np
import torch
from torch import Tensor

from daedl.names import look_up
from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.families import FAMILIES, Family

# Images processed together: fog of MNIST-C needs 0.5 MB per image and a few copies (chosen).
_BATCH = 100


def corrupt(
    images: Tensor, name: str, severity: int, family: str, seed: int = 0, first: int = 0
) -> Tensor:
    """Apply one corruption, as published for the family.

    Each image draws from (seed, family, name, severity, index of the image), so the result does not depend
    on batches: corrupting a dataset in parts gives the same images, if each part passes its `first`.

    Args:
        images: (N, C, H, W) uint8, not modified: (N, 1, 28, 28) for MNIST-C, (N, 3, 32, 32) for CIFAR-10-C.
        name: a key of `FAMILIES[family].corruptions`.
        severity: 1 to 5 for CIFAR-10-C; MNIST-C is published with one, 1.
        family: "mnist-c" or "cifar10-c".
        seed: at least 0.
        first: index of the first image in its dataset.

    Returns:
        (N, C, H, W) uint8. Values are clipped to [0, 255] and rounded as published, for CIFAR-10-C down.
    """
    kind = look_up(FAMILIES, family, "family of corruptions")
    function = kind.function(name)
    require_images(images, kind)
    if not 1 <= severity <= kind.severities:
        raise ValueError(
            f"severity is {severity!r}; expected an integer from 1 to {kind.severities}, as {kind.title} "
            "is published: pass one of these"
        )
    for value, what in ((seed, "seed"), (first, "first")):
        if value < 0:
            raise ValueError(f"{what} is {value}; expected 0 or more: pass e.g. {what}=0")
    parameters = kind.corruptions[name].at(severity)
    result = np.empty(images.shape, dtype=np.uint8)
    levels = images.cpu().numpy()
    for start in range(0, len(images), _BATCH):
        batch: Array = levels[start : start + _BATCH] / 255.0
        draws = Draws(seed, f"{family}/{name}", severity, first + start, len(batch))
        changed = function(batch, draws, **parameters).clip(0.0, 1.0) * 255
        result[start : start + _BATCH] = np.rint(changed) if kind.rounded else changed
    return torch.from_numpy(result).to(images.device)


def require_images(images: Tensor, family: Family) -> None:
    """Raise unless `images` are uint8 and have the shape that `family` is defined for."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        arrived = images.dtype if isinstance(images, Tensor) else f"a {type(images).__name__}"
        raise TypeError(
            f"images are {arrived}; expected a torch.uint8 tensor with values 0 to 255: convert with "
            "(255 * images).round().to(torch.uint8) if they are floats in [0, 1]"
        )
    expected = (family.channels, family.side, family.side)
    if images.ndim != 4 or tuple(images.shape[1:]) != expected:
        raise ValueError(
            f"images have shape {tuple(images.shape)}; {family.title} is defined for (N, "
            f"{', '.join(map(str, expected))}), in pixels: use images.permute(0, 3, 1, 2) if channels come "
            "last, images.unsqueeze(1) for grey images without a channel axis, resize them, or choose the "
            "other family"
        )
