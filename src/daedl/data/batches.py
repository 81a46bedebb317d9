"""Seeded batches of images in memory or in files."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from daedl.checks import require_whole
from daedl.data.files import Files

Batch = tuple[Tensor, Tensor]
# Maps float images (B, C, H, W) in [0, 1] and a random generator to images of the same shape.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]

ORDER, AUGMENTATION = 0, 1  # independent streams of random numbers


class EpochOrder:
    """The order of `number` images in an epoch, which depends on the seed and the epoch only."""

    def __init__(self, number: int, shuffle: bool, seed: int) -> None:
        self.number = number
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch of the next pass; `daedl.fit` calls it."""
        self.epoch = epoch

    def indices(self) -> Tensor:
        """Returns the order (N,), int64."""
        if not self.shuffle:
            return torch.arange(self.number)
        return torch.randperm(self.number, generator=self.generator(ORDER))

    def generator(self, stream: int) -> torch.Generator:
        """Returns the generator of this epoch and stream."""
        state = np.random.SeedSequence((self.seed, self.epoch, stream)).generate_state(1)
        return torch.Generator().manual_seed(int(state[0]))


class Batches:
    """Iterates over batches of images and labels (B,).

    Images are uint8 (B, C, H, W), or floats in [0, 1] after augmentation; `Preprocess` accepts both. Two
    passes over the same epoch are equal. `sampler.set_epoch` selects the epoch, as with PyTorch's
    DistributedSampler. Densities are fitted to `plain()` batches.

    Arguments:
        images: (N, C, H, W), uint8, or files, which worker processes decode; the batches are equal.
        labels: (N,), int64.
        batch_size: images per batch.
        shuffle: whether to reshuffle in every epoch.
        seed: seed of order and augmentation.
        augment: random augmentation of each batch.
        drop_last: whether to drop the last batch if it is smaller than the others.
    """

    def __init__(
        self,
        images: Tensor | Files,
        labels: Tensor,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        augment: Augmentation | None = None,
        drop_last: bool = False,
    ) -> None:
        require_whole("batch_size", batch_size, 1, "64")
        if drop_last and batch_size > len(images):
            raise ValueError(
                f"batch_size is {batch_size} for {len(images)} images; expected at most {len(images)} with "
                "drop_last"
            )
        self.images = images
        self.labels = labels
        self.batch_size = batch_size
        self.augment = augment
        self.drop_last = drop_last
        self.sampler = EpochOrder(len(images), shuffle, seed)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        order = torch.split(self.sampler.indices(), self.batch_size)[: len(self)]
        generator = self.sampler.generator(AUGMENTATION)
        for chosen, images in zip(order, self._select(order), strict=True):
            labels = self.labels.index_select(0, chosen)
            if self.augment is None:
                yield images, labels
            else:
                yield self.augment(images.float().div_(255), generator), labels

    def _select(self, order: Sequence[Tensor]) -> Iterator[Tensor]:
        if isinstance(self.images, Files):
            return self.images.batches(order)
        return (self.images.index_select(0, chosen) for chosen in order)

    def plain(self) -> "Batches":
        """Returns batches of the same images, in order and without augmentation."""
        return Batches(self.images, self.labels, self.batch_size)
