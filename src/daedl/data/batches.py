"""Batches by slicing tensors: no workers, no per-image Python; order and augmentation are seeded."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from daedl.outputs import Batch

# Float images (B, C, H, W) in [0, 1], and where random numbers come from, to images of that shape.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]

ORDER, AUGMENTATION = 0, 1  # streams of random numbers that don't share any


class EpochOrder:
    """The order of `number` images in an epoch: a function of the seed and the epoch alone."""

    def __init__(self, number: int, shuffle: bool, seed: int) -> None:
        self.number = number
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The next pass is epoch `epoch`; `daedl.fit` says so before each."""
        self.epoch = epoch

    def indices(self) -> Tensor:
        """(N,), int64."""
        if not self.shuffle:
            return torch.arange(self.number)
        return torch.randperm(self.number, generator=self.generator(ORDER))

    def generator(self, stream: int) -> torch.Generator:
        """Random numbers of this epoch."""
        state = np.random.SeedSequence((self.seed, self.epoch, stream)).generate_state(1)
        return torch.Generator().manual_seed(int(state[0]))


class Batches:
    """Goes through images as (float images (B, C, H, W), labels (B,)), once an iteration.

    Pixels become x = (u / 255 - mean) / std; augmentation comes before `mean` and `std`, so that what it
    fills in is black.

    Two passes over the same epoch are equal. `sampler.set_epoch` chooses the epoch, as with PyTorch's
    DistributedSampler; `daedl.fit` calls it. Fit a density on `plain()` batches.

    Args:
        images: (N, C, H, W), uint8.
        labels: (N,), int64.
        mean, std: of each channel (C,), as shares of 255.
        drop_last: leave out the last batch if it is smaller than the others.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        augment: Augmentation | None = None,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1 or (drop_last and batch_size > len(images)):
            raise ValueError(
                f"batch_size is {batch_size} for {len(images)} images; expected at least 1, and with "
                "drop_last no more than there are images"
            )
        self.images = images
        self.labels = labels
        self.batch_size = batch_size
        self.mean = _channelwise(mean, images.shape[1], "mean")
        self.std = _channelwise(std, images.shape[1], "std")
        self.augment = augment
        self.drop_last = drop_last
        self.sampler = EpochOrder(len(images), shuffle, seed)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        order = self.sampler.indices()
        generator = self.sampler.generator(AUGMENTATION)
        for number in range(len(self)):
            chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self._images(chosen, generator), self.labels.index_select(0, chosen)

    def plain(self) -> "Batches":
        """The same images, each once, in order and not augmented: for a density, or to predict."""
        return Batches(
            self.images,
            self.labels,
            self.batch_size,
            mean=None if self.mean is None else self.mean.flatten().tolist(),
            std=None if self.std is None else self.std.flatten().tolist(),
        )

    def _images(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        images = self.images.index_select(0, chosen).float().div_(255)
        if self.augment is not None:
            images = self.augment(images, generator)
        if self.mean is not None:
            images = images - self.mean
        if self.std is not None:
            images = images / self.std
        return images


def _channelwise(values: Sequence[float] | None, channels: int, name: str) -> Tensor | None:
    if values is None:
        return None
    if len(values) != channels:
        raise ValueError(
            f"{name} has {len(values)} values but the images have {channels} channel(s); expected one "
            "value for each channel: take them from ImageSet.mean_and_std of the training images"
        )
    if name == "std" and min(values) <= 0:
        raise ValueError(
            f"std is {tuple(values)}; expected positive values: a channel that never changes has none, "
            "so leave std out"
        )
    return torch.tensor(values, dtype=torch.float32).view(1, channels, 1, 1)
