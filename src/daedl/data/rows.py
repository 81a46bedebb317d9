"""Batches of a dataset in memory, which are selected at once."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset

from daedl.inputs import Inputs, count_rows, select


class Prepared(NamedTuple):
    """A batch of validated network inputs, targets and sample weights."""

    inputs: Inputs
    targets: Tensor
    weights: Tensor | None = None


class Rows(Dataset[Any]):
    """A whole dataset in memory, from which a DataLoader selects a batch at once instead of single samples.

    Arguments:
        parts: inputs, labels, and optionally weights.
    """

    def __init__(self, *parts: Inputs) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return count_rows(self.parts[0])

    def __getitems__(self, indices: list[int] | Tensor) -> tuple[Inputs, ...]:
        """Returns the samples at `indices` as one batch."""
        return tuple(select(part, indices) for part in self.parts)


class RowLoader(DataLoader[Any]):
    """A DataLoader of `Rows`: the same batches and random numbers, without its cost per batch.

    That cost exceeds the forward pass of a small network.
    """

    dataset: Rows

    def __iter__(self) -> Iterator[tuple[Inputs, ...]]:  # type: ignore[override]
        batches = cast(BatchSampler, self.batch_sampler)
        # DataLoader draws a seed for worker processes before the sampler draws its own.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        order = torch.tensor(list(batches.sampler))
        for chosen in torch.split(order, batches.batch_size):
            if len(chosen) == batches.batch_size or not batches.drop_last:
                yield self._batch(chosen)

    def _batch(self, chosen: Tensor) -> tuple[Inputs, ...]:
        return self.dataset.__getitems__(chosen)

    def prepared(self, prepare: Callable[[tuple[Inputs, ...]], Prepared]) -> "RowLoader":
        """Returns a loader of `Prepared` batches in the order of this one, by one call of `prepare`."""
        parts = (part for part in prepare(self.dataset.parts) if part is not None)
        return PreparedLoader(
            Rows(*parts), batch_sampler=self.batch_sampler, generator=self.generator
        )


class PreparedLoader(RowLoader):
    """A `RowLoader` whose rows are prepared."""

    def _batch(self, chosen: Tensor) -> Prepared:
        return Prepared(*super()._batch(chosen))
