"""Converts arrays, pictures, paths, datasets and loaders to batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
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
from daedl.data.batches import Batch, Batches
from daedl.data.files import FileLoader, Files, LabelledFiles, loader_options
from daedl.data.folder import pictures_in
from daedl.data.images import ImageSet
from daedl.data.preprocess import Preprocess

# Labelled data: batches of (inputs, targets) or (inputs, targets, weights), a Dataset of such samples, arrays
# with a whole dataset, an ImageSet, or the path of a folder with one subfolder per class.
Data = Any
BATCH_SIZE = 256  # for data without batches (chosen)
EXPECTED = (
    "a DataLoader, a list of (inputs, labels) batches, a Dataset, two arrays (inputs, labels), an ImageSet, "
    "or the path of a folder with one subfolder of images per class"
)


def as_batches(
    data: Data,
    batch_size: int = BATCH_SIZE,
    *,
    shuffle: bool = False,
    read: Callable[[Path], ImageSet] | None = None,
) -> Iterable[Batch]:
    """Converts labelled data to batches of (inputs, targets).

    With `shuffle`, for training, a loader keeps its own order. Without, every sample is returned exactly once
    and in order: a DataLoader that shuffles or drops its last batch is rebuilt.

    Arguments:
        data: see `Data`.
        batch_size: for data without batches.
        shuffle: whether to shuffle data without batches anew in each pass.
        read: reads the images at a path; without it paths are rejected.
    """
    require_whole("batch_size", batch_size, 1, "64")
    if isinstance(data, str | Path) and read is not None:
        data = read(Path(data))
    if isinstance(data, ImageSet):
        data = data.dataset()
    if isinstance(data, LabelledFiles):
        return FileLoader(data, batch_size, shuffle, **loader_options(len(data)))
    if _is_whole_set(data):
        data = _as_dataset(*data)
    if isinstance(data, Dataset):
        if isinstance(data, Sized) and len(data) == 0:
            raise ValueError("the dataset is empty; expected at least one sample")
        if type(data) is TensorDataset:
            data = _Tensors(*data.tensors)
        # An IterableDataset determines its own order.
        return DataLoader(
            data,
            batch_size,
            shuffle and not isinstance(data, IterableDataset),
            collate_fn=_keep if isinstance(data, _Tensors) else None,
        )
    if isinstance(data, str | Path | bytes) or not isinstance(data, Iterable):
        raise TypeError(f"the data are a {type(data).__name__}; expected {EXPECTED}")
    return cast(Iterable[Batch], data if shuffle else in_order(data))


def as_inputs(
    data: Any, preprocess: Preprocess | None, input_shape: Sequence[int], batch_size: int
) -> Iterator[Tensor]:
    """Converts unlabelled inputs to batches (B, *input_shape), before preprocessing.

    Accepts one or more inputs: a tensor or array; PIL images; paths of pictures, or of a folder, whose
    pictures are sorted by path; an ImageSet; a Dataset, DataLoader or iterable of batches, whose labels
    are ignored.
    """
    require_whole("batch_size", batch_size, 1, "256")
    if isinstance(data, ImageSet):
        data = data.pixels
    elif (pictures := _expand_folders(data)) is not None:
        if preprocess is None:
            raise ValueError(
                "the classifier has no preprocessing (preprocess=None), so it can't read pictures; expected "
                "tensors: convert the pictures yourself, or set model.preprocess to the preprocessing used "
                "for training"
            )
        data = Files.of(pictures, preprocess)
    if isinstance(data, Files):
        yield from data.batches(torch.split(torch.arange(len(data)), batch_size))
    elif isinstance(data, Tensor | np.ndarray):
        yield from torch.split(as_input(data, input_shape), batch_size)
    else:
        for batch in as_batches(data, batch_size):
            yield as_input(batch[0] if isinstance(batch, tuple | list) else batch, input_shape)


def as_input(array: Any, input_shape: Sequence[int], where: str = "") -> Tensor:
    """Converts an array or tensor with one or more inputs to (B, *input_shape).

    Images may have channels last; grey images need no channel axis.
    """
    tensor, shape = torch.as_tensor(array), tuple(input_shape)
    for batch in (tensor, tensor.unsqueeze(0)):
        if tuple(batch.shape[1:]) == shape:
            return batch
    if len(shape) == 3:
        channels, height, width = shape
        if tuple(tensor.shape[-3:]) == (height, width, channels) and tensor.ndim in (3, 4):
            return as_input(tensor.movedim(-1, -3), shape)
        if channels == 1 and tuple(tensor.shape[-2:]) == (height, width) and tensor.ndim in (2, 3):
            return as_input(tensor.unsqueeze(-3), shape)
    hint = f", {shape[0]} channel(s) first or last" if len(shape) == 3 else ""
    raise ValueError(
        f"inputs{where} have shape {tuple(tensor.shape)}; the network expects "
        f"(batch, {', '.join(map(str, shape))}){hint}: resize or reshape them"
    )


def in_order(data: Iterable[Batch], rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
    """Returns every sample exactly once and in order; with several processes, the share of this one.

    A DataLoader is rebuilt without shuffling and dropping, and shares are not padded to equal length.
    A user-defined sampler keeps its selection and order.
    """
    if isinstance(data, Batches) and world_size == 1:
        return data.plain()
    if isinstance(data, DataLoader) and _covers_dataset(data):
        dataset = cast(Sized, data.dataset)
        return _rebuild(data, range(rank, len(dataset), world_size))
    if world_size > 1:
        raise _cannot_share(data)
    return data


def shuffled_share(
    batches: Iterable[Batch], rank: int, world_size: int, seed: int
) -> Iterable[Batch]:
    """Returns this process's share of the training samples; a single process gets all of them.

    Shares are padded to equal length, because all processes must run the same number of steps.
    """
    if world_size == 1:
        return batches
    if not (isinstance(batches, DataLoader) and _covers_dataset(batches)):
        raise _cannot_share(batches)
    chosen = cast(BatchSampler, batches.batch_sampler)
    shuffle = isinstance(chosen.sampler, RandomSampler)
    sampler: DistributedSampler[Batch] = DistributedSampler(
        batches.dataset, world_size, rank, shuffle, seed, drop_last=chosen.drop_last
    )
    return _rebuild(batches, sampler, drop_last=chosen.drop_last)


def require_repeatable(batches: Iterable[Batch]) -> None:
    """Raises for an iterator, because training needs several passes."""
    if isinstance(batches, Iterator):
        raise TypeError(
            f"the training data are a {type(batches).__name__}, which can be iterated only once; expected "
            f"{EXPECTED}"
        )


def start_epoch(batches: Iterable[Batch], epoch: int) -> None:
    """Passes the epoch to samplers with `set_epoch`."""
    for sampler in _samplers(batches):
        set_epoch = getattr(sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def count(batches: Iterable[Batch]) -> int | None:
    """Returns the number of batches, or None if it is unknown."""
    try:
        return len(cast(Sized, batches))
    except TypeError:
        return None


def generators(batches: Iterable[Batch]) -> list[torch.Generator]:
    """Returns the random generators of a DataLoader and its samplers, each once."""
    candidates = [getattr(each, "generator", None) for each in (batches, *_samplers(batches))]
    unique = {id(each): each for each in candidates if isinstance(each, torch.Generator)}
    return list(unique.values())


def _is_whole_set(data: Any) -> bool:
    """Returns whether `data` are arrays (inputs, labels[, weights]) of a whole dataset, not batches."""
    arrays = isinstance(data, tuple | list) and len(data) in (2, 3)
    return arrays and all(isinstance(part, Tensor | np.ndarray) for part in data)


class _Tensors(TensorDataset):
    """Tensors from which a DataLoader selects a batch at once instead of collating single samples."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        chosen = torch.tensor(indices)
        return tuple(tensor.index_select(0, chosen) for tensor in self.tensors)


def _keep(batch: Any) -> Any:
    """Returns the batch; a module-level function, because worker processes pickle it."""
    return batch


def _as_dataset(inputs: Any, labels: Any, *weights: Any) -> TensorDataset:
    if any(len(inputs) != len(part) for part in (labels, *weights)):
        counts = ", ".join(str(len(part)) for part in (inputs, labels, *weights))
        raise ValueError(
            f"inputs, labels and weights have {counts} entries; expected one label and optionally one weight "
            "per input"
        )
    return TensorDataset(*(torch.as_tensor(part) for part in (inputs, labels, *weights)))


def _expand_folders(data: Any) -> list[Any] | None:
    """Returns PIL images and paths, with folders replaced by their pictures; None for other `data`."""
    items = list(data) if isinstance(data, list | tuple) else [data]
    if not items or not all(isinstance(each, str | Path | Image) for each in items):
        return None
    pictures: list[Any] = []
    for each in items:
        if isinstance(each, str | Path) and Path(each).is_dir():
            pictures += pictures_in(Path(each))
        else:
            pictures.append(Path(each) if isinstance(each, str) else each)
    return pictures


def _samplers(batches: Iterable[Batch]) -> list[Any]:
    """Returns the samplers of a DataLoader; with a batch sampler, the loader's `sampler` is a dummy."""
    batch_sampler = getattr(batches, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    outer = getattr(batches, "sampler", None)
    return [inner, batch_sampler, *([] if outer is inner else [outer])]


def _covers_dataset(loader: DataLoader[Batch]) -> bool:
    """Returns whether PyTorch's own samplers return every sample of the dataset once per epoch."""
    if type(loader) not in (DataLoader, FileLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler: Any = loader.batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(cast(Sized, loader.dataset))
    return type(sampler) is SequentialSampler


def _cannot_share(batches: Iterable[Batch]) -> ValueError:
    return ValueError(
        f"several processes cannot share the samples of a {type(batches).__name__} with its own sampling; "
        "expected a DataLoader over a dataset with a length: select samples with torch.utils.data.Subset"
    )


def _rebuild(
    loader: DataLoader[Batch], sampler: Sequence[int] | Sampler[Any], drop_last: bool = False
) -> DataLoader[Batch]:
    return type(loader)(
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
