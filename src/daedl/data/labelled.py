"""What labelled datasets of every kind of input have in common."""

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
        """Inputs for people: tensors of pixels, or texts."""
        return self.inputs

    @property
    @abstractmethod
    def summary(self) -> str:
        """The form of the inputs, for people."""

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

    def random_split(self, number: int, seed: int) -> tuple[Self, Self]:
        """Returns `number` samples selected at random with `seed`, and the remaining ones."""
        if not 0 < number < len(self):
            raise ValueError(
                f"cannot split {number} {self.noun} off the {len(self)} of {self.name}; expected 1 to "
                f"{len(self) - 1}, so that neither part is empty"
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.subset(order[:number]), self.subset(order[number:])
