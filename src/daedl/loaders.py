"""Batches from what users have: a DataLoader, a pair of tensors, or any iterable of batches."""

from collections.abc import Iterable, Sequence, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from daedl.outputs import Batch

Data = Iterable[Batch] | tuple[Tensor, Tensor]


def as_batches(data: Data, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """`data` itself if it gives batches; (images, targets) tensors in batches of `batch_size`."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(x, Tensor) for x in data):
        images, targets = cast(tuple[Tensor, Tensor], data)
        if len(images) != len(targets):
            raise ValueError(
                f"{len(images)} images but {len(targets)} labels; expected one label for each image"
            )
        if len(images) == 0:
            raise ValueError("there are no images; expected at least one")
        return DataLoader(TensorDataset(images, targets), batch_size, shuffle)
    return cast(Iterable[Batch], data)


def in_order(batches: Iterable[Batch], rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
    """The same samples, each once, in order and none dropped; of several processes, this one's share.

    A density must see every sample exactly once, so a shuffling DataLoader is rebuilt without
    shuffling, and shares are not padded to equal length. Where the samples are chosen by a sampler of
    the user's own, or are not a DataLoader's, they are taken as they come.
    """
    if isinstance(batches, DataLoader) and _takes_all(batches):
        dataset = cast(Sized, batches.dataset)
        return _rebuilt(batches, range(rank, len(dataset), world_size))
    if world_size > 1:
        raise ValueError(
            f"several processes cannot share the samples of a {type(batches).__name__} with a "
            "sampler of its own; expected a DataLoader over a dataset with a length, shuffled or "
            "not: choose samples with torch.utils.data.Subset instead"
        )
    return batches


def _takes_all(loader: DataLoader[Batch]) -> bool:
    """Whether an epoch of `loader` is every sample of its dataset once, in some order."""
    sampler: Any = loader.sampler
    if (
        isinstance(loader.dataset, IterableDataset)
        or type(loader.batch_sampler) is not BatchSampler
    ):
        return False
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(cast(Sized, loader.dataset))
    return type(sampler) is SequentialSampler


def _rebuilt(loader: DataLoader[Batch], indices: Sequence[int]) -> DataLoader[Batch]:
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=indices,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )


def generators(batches: Iterable[Batch]) -> list[torch.Generator]:
    """The random generators that a DataLoader draws its order from, if it has its own."""
    found = [getattr(batches, "generator", None)]
    found.append(getattr(getattr(batches, "sampler", None), "generator", None))
    unique = {id(g): g for g in found if isinstance(g, torch.Generator)}
    return list(unique.values())
