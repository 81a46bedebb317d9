"""What a network takes, and what may be made of a request's body to get it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from daedl.classifier import Classifier


@dataclass(frozen=True)
class Inputs:
    """The shape and type of one input of a network."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Classifier) -> "Inputs":
        """Those of `model`."""
        return cls(tuple(model.network.input_shape), next(model.network.parameters()).dtype)

    @property
    def are_images(self) -> bool:
        """Whether they are (C, H, W) with 1 or 3 channels, so that pictures can be turned into them."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes that one array may have: a grey image needs no axis for its channel."""
        grey = self.are_images and self.shape[0] == 1
        return [self.shape, self.shape[1:]] if grey else [self.shape]

    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels (N, ...) from 0 to 255 as inputs (N, *shape) from 0 to 1."""
        return pixels.to(self.dtype).reshape(-1, *self.shape) / 255
