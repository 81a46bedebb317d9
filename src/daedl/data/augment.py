"""Augmentation of whole batches: every image has its own random change, made by tensor operations.

Each takes float images (B, C, H, W) and a generator, and gives new images of the same shape; what comes
in from outside of an image is 0, that is black.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from daedl.data.batches import Augmentation
from daedl.names import look_up


@dataclass(frozen=True)
class Flip:
    """Mirror left and right with `probability`."""

    probability: float = 0.5

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        flipped = torch.rand(len(images), generator=generator) < self.probability
        return torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)


@dataclass(frozen=True)
class Crop:
    """Move by up to `padding` pixels in each direction: a crop of the padded image, as is usual for CIFAR."""

    padding: int = 4

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        number, _, height, width = images.shape
        places = 2 * self.padding + 1
        down, right = torch.randint(places, (2, number), generator=generator)
        padded = F.pad(images, (self.padding,) * 4)
        # A view of every crop there is, (B, C, places, places, H, W), of which one each is copied.
        crops = padded.unfold(2, height, 1).unfold(3, width, 1)
        return crops[torch.arange(number), :, down, right]


@dataclass(frozen=True)
class Rotate:
    """Turn about the centre by an angle drawn from [-degrees, degrees], bilinearly."""

    degrees: float = 15.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draws = 2 * torch.rand(len(images), generator=generator) - 1
        return rotate(images, math.radians(self.degrees) * draws)


@dataclass(frozen=True)
class Chain:
    """One augmentation after the other."""

    steps: tuple[Augmentation, ...]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images


def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Turn each of `images` (B, C, H, W) anticlockwise by its angle (B,) in radians.

    An output pixel at (x, y) from the centre, y pointing down, is read from

        (x cos a - y sin a, x sin a + y cos a).

    affine_grid counts in half widths and half heights, hence the quotients of the two.
    """
    height, width = images.shape[2:]
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    first = torch.stack((cos, -sin * height / width, zero), dim=1)
    second = torch.stack((sin * width / height, cos, zero), dim=1)
    matrices = torch.stack((first, second), dim=1).to(images.dtype)
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


AUGMENTATIONS: Mapping[str, Callable[[], Augmentation]] = MappingProxyType(
    {"flip": Flip, "crop": Crop, "rotate": Rotate}
)


def augmentation(names: Sequence[str]) -> Augmentation | None:
    """The augmentations of these names one after the other, with their usual strength; None for none."""
    steps = tuple(look_up(AUGMENTATIONS, name, "augmentation")() for name in names)
    return Chain(steps) if steps else None
