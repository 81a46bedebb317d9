"""`InputKind`: what a classifier knows of its raw inputs; images and texts are two kinds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from daedl.data.labelled import Labelled
from daedl.inputs import Inputs


class InputKind(ABC):
    """Converts raw inputs to network inputs; settings of one kind, part of a classifier and its model file.

    Attributes:
        kind: name in model files.
        noun: what raw inputs are, in the plural.
        shape: shape of one network input; () if lengths vary.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]

    @classmethod
    def restore(cls, settings: Mapping[str, Any]) -> Self:
        """Rebuilds an object from its settings in a model file."""
        return cls(**settings)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one network input; () if it isn't a tensor of one shape."""

    @abstractmethod
    def prepare(self, inputs: Any, like: Tensor, where: str = "") -> Inputs:
        """Converts one or more raw inputs to network inputs with the device and dtype of `like`."""

    @abstractmethod
    def open(self, data: Any) -> Any:
        """Replaces paths, pictures, ... by raw inputs that can be batched; returns other `data` unchanged."""

    def longest(self, like: Tensor) -> Inputs | None:
        """Returns the network input that takes most of a network, None if all have the same shape."""
        del like
        return None

    def noise(self, like: Inputs) -> Inputs:
        """Returns network inputs of uniformly random raw inputs, of the form of the network inputs `like`."""
        del like
        raise ValueError(
            f"the inputs are {self.noun}, which have no uniform noise; expected images: choose a method that "
            "is not trained with noise, such as 'daedl'"
        )

    @abstractmethod
    def read(
        self,
        path: Path,
        class_names: Sequence[str],
        labelled: bool = True,
        skip_broken: bool = False,
    ) -> Labelled:
        """Reads the samples at `path`; labels are positions in `class_names`."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Returns the constructor arguments, JSON-able, and the kind unless it is that of images."""
