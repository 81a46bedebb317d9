"""Converts arrays, pictures, paths, datasets and loaders to batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from PIL.Image import Image
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
from daedl.data.kind import InputKind
from daedl.data.labelled import Labelled
from daedl.data.rows import RowLoader, Rows
from daedl.inputs import (
    Inputs,
    as_input,
    as_numbers,
    convert,
    inputs_of,
    is_array,
    is_labelled,
    is_text,
    parts_of,
    split,
    unpacked,
)

# Labelled data: batches of (inputs, targets) or (inputs, targets, weights), or mappings with `labels`; a
# Dataset of such samples; one such batch with a whole dataset; an ImageSet; or the path of a folder with one
# subfolder per class. Inputs are a tensor, or a tuple or mapping of tensors.
Data = Any
BATCH_SIZE = 256  # for data without batches (chosen)
EXPECTED = (
    "a DataLoader, a list of (inputs, labels) batches or of mappings with labels, a Dataset, two arrays "
    "(inputs, labels), an ImageSet, or the path of a folder with one subfolder of images per class"
)


def as_batches(
    data: Data,
    batch_size: int = BATCH_SIZE,
    *,
    shuffle: bool = False,
    read: Callable[[Path], Labelled] | None = None,
) -> Iterable[Batch]:
    """Converts labelled data to batches of (inputs, targets).

    With `shuffle`, for training, a loader keeps its own order. Without, every sample is returned exactly once
    and in order: a DataLoader that shuffles or drops its last batch is rebuilt.

    Arguments:
        data: see `Data`.
        batch_size: for data without batches.
        shuffle: whether to reshuffle data without batches in each pass.
        read: reads the images at a path; without it paths are rejected.
    """
    require_whole("batch_size", batch_size, 1, "64")
    if isinstance(data, str | Path) and read is not None:
        data = read(Path(data))
    if isinstance(data, Labelled):
        data = data.dataset()
    if isinstance(data, LabelledFiles):
        return FileLoader(data, batch_size, shuffle, **loader_options(len(data)))
    if is_labelled(data):
        data = _as_rows(*unpacked(data))
    # Datasets of other libraries, such as Hugging Face's, return several samples by this method.
    if isinstance(data, Dataset) or (hasattr(data, "__getitems__") and isinstance(data, Sized)):
        if isinstance(data, Sized) and len(data) == 0:
            raise ValueError("the dataset is empty; expected at least one sample")
        if type(data) is TensorDataset:
            data = Rows(*data.tensors)
        if isinstance(data, Rows):
            return RowLoader(data, batch_size, shuffle)
        # An IterableDataset determines its own order.
        return DataLoader(data, batch_size, shuffle and not isinstance(data, IterableDataset))
    if isinstance(data, str | Path | bytes) or not isinstance(data, Iterable):
        raise TypeError(f"the data are a {type(data).__name__}; expected {EXPECTED}")
    return cast(Iterable[Batch], data if shuffle else in_order(data))


def as_inputs(
    data: Any,
    preprocess: InputKind | None,
    input_shape: Sequence[int],
    batch_size: int,
    matches: Callable[[Any], bool] = lambda _: False,
) -> Iterator[Inputs]:
    """Converts unlabelled inputs to batches, before preprocessing.

    Accepts one or more inputs: a tensor or array; a mapping of them, or a tuple for which `matches` is true;
    what `preprocess` opens, such as PIL images and paths; an ImageSet; a Dataset, DataLoader or iterable of
    batches. Labels are ignored.
    """
    require_whole("batch_size", batch_size, 1, "256")
    if isinstance(data, Labelled):
        data = data.inputs
    elif preprocess is not None:
        data = preprocess.open(data)
    elif is_text([data]) or is_text(data) or isinstance(data, Path | Image):
        raise ValueError(
            "the classifier has no preprocessing (preprocess=None), so it can't read pictures or texts; "
            "expected tensors: convert them yourself, or set model.preprocess to the preprocessing used for "
            "training"
        )

    def shaped(inputs: Inputs) -> Inputs:
        if not input_shape:
            return inputs
        if preprocess is None:
            return as_input(inputs, input_shape)
        remedy = "resize them, or pass PIL images or paths, which are resized"
        return as_input(inputs, input_shape, remedy=remedy)

    if isinstance(data, Files):
        yield from data.batches(torch.split(torch.arange(len(data)), batch_size))
    elif is_array(data):
        yield from split(shaped(as_numbers(data, "inputs")), batch_size)
    elif matches(data) or is_text(data):
        yield from split(data, batch_size)
    elif isinstance(data, Mapping):
        yield from split(inputs_of(data), batch_size)
    else:
        for batch in as_batches(data, batch_size):
            yield shaped(batch if matches(batch) else inputs_of(batch))


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


def _as_rows(inputs: Inputs, *others: Any) -> Rows:
    numbers = [len(part) for part in (*parts_of(inputs), *others)]
    if len(set(numbers)) > 1:
        counts = ", ".join(map(str, numbers))
        raise ValueError(
            f"inputs, labels and weights have {counts} entries; expected one label and optionally one weight "
            "per input"
        )
    tensors = (
        inputs if is_text(inputs) else convert(inputs, lambda each: as_numbers(each, "inputs"))
    )
    return Rows(
        tensors,
        *(as_numbers(each, n) for n, each in zip(("labels", "weights"), others, strict=False)),
    )


def _samplers(batches: Iterable[Batch]) -> list[Any]:
    """Returns the samplers of a DataLoader; with a batch sampler, the loader's `sampler` is a dummy."""
    batch_sampler = getattr(batches, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    outer = getattr(batches, "sampler", None)
    return [inner, batch_sampler, *([] if outer is inner else [outer])]


def _covers_dataset(loader: DataLoader[Batch]) -> bool:
    """Returns whether PyTorch's own samplers return every sample of the dataset once per epoch."""
    if type(loader) not in (DataLoader, FileLoader, RowLoader) or isinstance(
        loader.dataset, IterableDataset
    ):
        return False
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler: Any = loader.batch_sampler.sampler
    if isinstance(sampler, range):  # rebuilt by `in_order`
        return sampler == range(len(cast(Sized, loader.dataset)))
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
