"""`Source`: the interface of an adapter between a library of pretrained networks and daedl."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from daedl.data import InputKind


@dataclass(frozen=True)
class Body:
    """Architecture of a backbone: named blocks in order; the last one returns features (B, H).

    `finetuned` is the first block, or module in it, that fine-tuning trains by default; `depths` are blocks
    before the last one that the density sees by default; `blank` is one input, unless inputs are images.
    """

    blocks: Mapping[str, nn.Module]
    finetuned: str
    depths: tuple[str, ...] = ()
    blank: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Pretrained:
    """Published weights of a backbone.

    Attributes:
        name: rebuilds the architecture, together with `config`; stored in model files.
        weights: parameters and buffers, named BLOCK.PARAMETER.
        preprocess: how the inputs were prepared with which the weights were trained.
        config: JSON-able settings of the architecture.
        head: default arguments of `daedl.networks.Backbone` for the head.
    """

    name: str
    weights: Mapping[str, Tensor]
    preprocess: InputKind
    config: Mapping[str, Any] = field(default_factory=dict)
    head: Mapping[str, Any] = field(default_factory=dict)


class Remembering(nn.Module, ABC):
    """A block that can keep the outputs of its frozen layers while the layers after them are trained."""

    @abstractmethod
    def remembering(self) -> AbstractContextManager[None]:
        """Keeps outputs within the context. Frozen weights must not change in it."""


class Source(ABC):
    """One source of backbones. `name` is the part of the backbone's name after the prefix."""

    @abstractmethod
    def body(self, name: str, image_size: int | None, config: Mapping[str, Any]) -> Body:
        """Builds the architecture with random weights, without network access."""

    @abstractmethod
    def pretrained(self, name: str, image_size: int | None) -> Pretrained:
        """Loads published weights; `image_size` None selects the default size."""
