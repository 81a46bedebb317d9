"""Images that show nothing: what no class should claim."""

import torch

from daedl.data.images import ImageSet

NUMBER = 10_000  # as many as MNIST and CIFAR-10 have test images


def noise(
    shape: tuple[int, int, int], number: int = NUMBER, seed: int = 0, split: str = "test"
) -> ImageSet:
    """`number` images of `shape` (C, H, W), every value drawn uniformly from 0 to 255; all labels are 0."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (number, *shape), dtype=torch.uint8, generator=generator)
    return ImageSet(images, torch.zeros(number, dtype=torch.int64), "noise", split)
