"""Batches from what users have: a DataLoader, a Dataset, a pair of arrays, or any iterable of batches."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from daedl.checks import require_whole
from daedl.outputs import Batch, Data, is_pair


def as_batches(data: Data, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """`data` itself if it gives batches; a dataset or (images, targets) in batches of `batch_size`."""
    if is_pair(data):
        images, targets = (torch.as_tensor(part) for part in cast(Any, data))
        if len(images) != len(targets):
            raise ValueError(
                f"{len(images)} images but {len(targets)} labels; expected one label for each image"
            )
        data = TensorDataset(images, targets)
    if isinstance(data, Dataset):
        if isinstance(data, Sized) and len(data) == 0:
            raise ValueError("there are no images; expected at least one")
        require_whole("batch_size", batch_size, 1, "64")
        # What gives its samples itself has its own order.
        return DataLoader(data, batch_size, shuffle and not isinstance(data, IterableDataset))
    if isinstance(data, Iterator) or not isinstance(data, Iterable):
        raise TypeError(
            f"the data are a {type(data).__name__}, which can't be gone through once an epoch; "
            "expected a DataLoader, a list of (images, labels) batches, a Dataset, or two tensors"
        )
    return cast(Iterable[Batch], data)


def in_order(batches: Iterable[Batch], rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
    """The same samples, each once, in order and none dropped; of several processes, this one's share.

    A density must see every sample exactly once, so a shuffling DataLoader is rebuilt without
    shuffling, and shares are not padded to equal length. Where the samples are chosen by a sampler of
    the user's own, or are not a plain DataLoader's, they are taken as they come.
    """
    if isinstance(batches, DataLoader) and _takes_all(batches):
        dataset = cast(Sized, batches.dataset)
        return _rebuilt(batches, range(rank, len(dataset), world_size))
    if world_size > 1:
        raise _cannot_share(batches)
    return batches


def shuffled_share(
    batches: Iterable[Batch], rank: int, world_size: int, seed: int
) -> Iterable[Batch]:
    """This process's share of the training samples: all of them in a single process.

    Shares are padded to equal length, so that no process waits for another's last batch.
    """
    if world_size == 1:
        return batches
    if not (isinstance(batches, DataLoader) and _takes_all(batches)):
        raise _cannot_share(batches)
    chosen = cast(BatchSampler, batches.batch_sampler)
    shuffle = isinstance(chosen.sampler, RandomSampler)
    sampler: DistributedSampler[Batch] = DistributedSampler(
        batches.dataset, world_size, rank, shuffle, seed, drop_last=chosen.drop_last
    )
    return _rebuilt(batches, sampler, drop_last=chosen.drop_last)


def start_epoch(batches: Iterable[Batch], epoch: int) -> None:
    """Tell a sampler that shuffles by the epoch which one it is."""
    for sampler in _samplers(batches):
        set_epoch = getattr(sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _samplers(batches: Iterable[Batch]) -> list[Any]:
    """What may decide the order of a DataLoader's samples; `sampler` is a dummy beside a batch sampler."""
    of_batches = getattr(batches, "batch_sampler", None)
    inner = getattr(of_batches, "sampler", None)
    outer = getattr(batches, "sampler", None)
    return [inner, of_batches, *([] if outer is inner else [outer])]


def _takes_all(loader: DataLoader[Batch]) -> bool:
    """Whether an epoch is every sample of the dataset once in some order, by PyTorch's own classes."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler: Any = loader.batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(cast(Sized, loader.dataset))
    return type(sampler) is SequentialSampler


def _cannot_share(batches: Iterable[Batch]) -> ValueError:
    return ValueError(
        f"several processes cannot share the samples of a {type(batches).__name__} that chooses or "
        "makes its own; expected a DataLoader over a dataset with a length, shuffled or not: choose "
        "samples with torch.utils.data.Subset instead"
    )


def _rebuilt(
    loader: DataLoader[Batch], sampler: Sequence[int] | Sampler[Any], drop_last: bool = False
) -> DataLoader[Batch]:
    return DataLoader(
        loader.dataset,
        batch_size=cast(BatchSampler, loader.batch_sampler).batch_size,
        sampler=sampler,
        drop_last=drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )


def count(batches: Iterable[Batch]) -> int | None:
    """The number of batches; None where they don't tell, as a DataLoader of an endless stream doesn't."""
    try:
        return len(cast(Sized, batches))
    except TypeError:
        return None


def generators(batches: Iterable[Batch]) -> list[torch.Generator]:
    """The random generators that a DataLoader draws its order from, if it has its own."""
    found = [getattr(each, "generator", None) for each in (batches, *_samplers(batches))]
    unique = {id(g): g for g in found if isinstance(g, torch.Generator)}
    return list(unique.values())
