"""`Source`: the interface of an adapter between a library of pretrained networks and daedl."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from daedl.data import Preprocess


@dataclass(frozen=True)
class Body:
    """Architecture of a backbone: named blocks in order; the last one returns features (B, H).

    `finetuned` is the first block that fine-tuning trains by default; `depths` are the blocks before the last
    one that the density sees by default.
    """

    blocks: Mapping[str, nn.Module]
    finetuned: str
    depths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pretrained:
    """Published weights of a backbone.

    Attributes:
        name: rebuilds the architecture, together with `config`; stored in model files.
        weights: parameters and buffers, named BLOCK.PARAMETER.
        preprocess: channels, size, mean and std with which the weights were trained.
        config: JSON-able settings of the architecture.
    """

    name: str
    weights: Mapping[str, Tensor]
    preprocess: Preprocess
    config: Mapping[str, Any] = field(default_factory=dict)


class Source(ABC):
    """One source of backbones. `name` is the part of the backbone's name after the prefix."""

    @abstractmethod
    def body(self, name: str, image_size: int, config: Mapping[str, Any]) -> Body:
        """Builds the architecture with random weights, without network access."""

    @abstractmethod
    def pretrained(self, name: str, image_size: int | None) -> Pretrained:
        """Loads published weights; `image_size` None selects the default size."""
