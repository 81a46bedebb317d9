"""`Labelled`: the base class of labelled datasets, whatever their kind of input."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from daedl.names import names_or_numbers


class Labelled(ABC):
    """A dataset with labels (N,), int64, and a name per class or None."""

    labels: Tensor
    name: str
    class_names: tuple[str, ...] | None
    noun: ClassVar[str]  # what the samples are, in the plural

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def inputs(self) -> Any:
        """All inputs, in a form that `Classifier.predict` accepts."""

    @property
    def shown(self) -> Any:
        """Inputs as reports display them: tensors of pixels, or texts."""
        return self.inputs

    @property
    @abstractmethod
    def summary(self) -> str:
        """The form of the inputs, for messages."""

    @abstractmethod
    def subset(self, indices: Tensor | Sequence[int]) -> Self:
        """Returns the samples at `indices` (M,), in that order."""

    @abstractmethod
    def dataset(self) -> Any:
        """Returns the samples in a form that `daedl.data.loaders.as_batches` accepts."""

    @abstractmethod
    def digest(self) -> str:
        """Returns a digest of inputs and labels."""

    @property
    def num_classes(self) -> int:
        """The number of class names; without names, one more than the largest label."""
        return len(self.class_names) if self.class_names else int(self.labels.max()) + 1

    @property
    def names(self) -> list[str]:
        """The names of the classes, or their numbers."""
        return names_or_numbers(self.class_names, self.num_classes)

    def random_split(self, number: int, seed: int, stratify: bool = False) -> tuple[Self, Self]:
        """Returns `number` samples selected at random with `seed`, and the remaining ones.

        With `stratify` the first part has the same share of every class, up to rounding.
        """
        if not 0 < number < len(self):
            raise ValueError(
                f"cannot split {number} {self.noun} off the {len(self)} of {self.name}; expected 1 to "
                f"{len(self) - 1}, so that neither part is empty"
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        selected = torch.zeros(len(self), dtype=torch.bool)
        ranks = (
            _ranks_in_class(self.labels[order]).argsort(stable=True) if stratify else slice(None)
        )
        selected[torch.arange(len(self))[ranks][:number]] = True
        return self.subset(order[selected]), self.subset(order[~selected])


def _ranks_in_class(labels: Tensor) -> Tensor:
    """Position of each sample among those of its class, from 0 to 1 (N,)."""
    counts = torch.bincount(labels)
    by_class = labels.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    ranks = torch.empty(len(labels))
    ranks[by_class] = torch.arange(len(labels)) - starts[labels[by_class]] + 0.5
    return ranks / counts[labels]
