"""Random augmentation of batches, with independent parameters per image.

An augmentation maps float images (B, C, H, W) and a generator to new images of the same shape. Pixels from
outside of an image are 0 (black).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from daedl.data.batches import Augmentation
from daedl.names import look_up


@dataclass(frozen=True)
class Flip:
    """Flips images horizontally with `probability`."""

    probability: float = 0.5

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        flipped = torch.rand(len(images), generator=generator) < self.probability
        return torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)


@dataclass(frozen=True)
class Crop:
    """Pads by `padding` pixels on each side and crops to the original size, as is usual for CIFAR."""

    padding: int = 4
    mode: Literal["constant", "reflect"] = "constant"

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        number, _, height, width = images.shape
        places = 2 * self.padding + 1
        down, right = torch.randint(places, (2, number), generator=generator)
        padded = F.pad(images, (self.padding,) * 4, mode=self.mode)
        # A view of all crops (B, C, places, places, H, W); indexing copies one per image.
        crops = padded.unfold(2, height, 1).unfold(3, width, 1)
        return crops[torch.arange(number), :, down, right]


@dataclass(frozen=True)
class Rotate:
    """Rotates about the centre by an angle drawn from [-degrees, degrees], with bilinear interpolation."""

    degrees: float = 15.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draws = 2 * torch.rand(len(images), generator=generator) - 1
        return rotate(images, math.radians(self.degrees) * draws)


@dataclass(frozen=True)
class Chain:
    """Applies augmentations in sequence."""

    steps: tuple[Augmentation, ...]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images


def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Rotates `images` (B, C, H, W) anticlockwise by `angles` (B,) in radians.

    An output pixel at (x, y) from the centre, y pointing down, is read from

        (x cos a - y sin a, x sin a + y cos a).

    The units of affine_grid are half the width and half the height, hence the ratios of the two.
    """
    height, width = images.shape[2:]
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    first = torch.stack((cos, -sin * height / width, zero), dim=1)
    second = torch.stack((sin * width / height, cos, zero), dim=1)
    matrices = torch.stack((first, second), dim=1).to(images.dtype)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


AUGMENTATIONS: Mapping[str, Callable[[], Augmentation]] = MappingProxyType(
    # "shift" as in airbench.
    {"flip": Flip, "crop": Crop, "rotate": Rotate, "shift": partial(Crop, 2, "reflect")}
)


def augmentation(names: Sequence[str]) -> Augmentation | None:
    """Returns the augmentations of these names in sequence, with default strength; None without names."""
    steps = tuple(look_up(AUGMENTATIONS, name, "augmentation")() for name in names)
    return Chain(steps) if steps else None
