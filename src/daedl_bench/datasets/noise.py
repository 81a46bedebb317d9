"""Uniform noise as an OOD dataset."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from daedl.data.images import ImageSet

NUMBER = 10_000  # as many as MNIST and CIFAR-10 have test images
# Shapes of CIFAR-10 and MNIST images.
NOISES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"noise": (3, 32, 32), "noise-grey": (1, 28, 28)}
)
SEEDS: Mapping[str, int] = MappingProxyType({"test": 0, "train": 1})


def noise(
    shape: tuple[int, int, int], number: int = NUMBER, seed: int = 0, split: str = "test"
) -> ImageSet:
    """`number` images of `shape` (C, H, W), values uniform from 0 to 255; all labels are 0."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (number, *shape), dtype=torch.uint8, generator=generator)
    return ImageSet(images, torch.zeros(number, dtype=torch.int64), "noise", split)
