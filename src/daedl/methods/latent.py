"""Base classes of methods whose network ends in a head of the method."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from daedl.checks import Count
from daedl.methods.base import BaseMethod, Method
from daedl.networks import Headed, Network
from daedl.networks.headed import replace_last_layer
from daedl.spectral import normalization, remove_spectral_norm, spectral_normalize


@dataclass(frozen=True, kw_only=True)
class HeadedMethod(BaseMethod):
    """Abstract base: the last layer outputs other numbers than logits, and a head follows."""

    @abstractmethod
    def last_width(self, num_classes: int) -> int:
        """Outputs of the last layer."""

    @abstractmethod
    def head(self, num_classes: int) -> nn.Module:
        """Build a head that maps Outputs with `last_width` logits to Outputs."""

    def features_of(self, network: Network) -> int:
        """Number of columns of the features that the head returns."""
        return network.num_features

    def prepare(self, network: Network) -> Network:
        """Replace the last layer and add the head, unless the network has it already."""
        self.require_normalization(network)  # before the network changes
        if network.plain is network:
            present = normalization(network)
            replace_last_layer(remove_spectral_norm(network), self.last_width(network.num_classes))
            head = self.head(network.num_classes).to(next(network.parameters()))
            network = Headed(network, head, self.features_of(network))
            if present is not None:  # includes the new last layer
                spectral_normalize(network, present)
        return super().prepare(network)

    def has_head(self, network: Network) -> bool:
        """Whether `network` has a head with the tensor names and shapes of a new one."""
        with torch.device("meta"):  # no memory and no random numbers
            new = self.head(network.num_classes)
        return isinstance(network, Headed) and _shapes(network.head) == _shapes(new)


@dataclass(frozen=True, kw_only=True)
class LatentMethod(HeadedMethod, Method):
    """Abstract base: the last layer outputs a latent instead of logits, and a head follows.

    Attributes:
        latent: dimension of the latent.
    """

    latent: Count = 6

    @property
    def num_features(self) -> int:
        """Number of columns of the features that the head returns."""
        return self.latent

    def last_width(self, num_classes: int) -> int:
        return self.latent

    def features_of(self, network: Network) -> int:
        return self.num_features


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}
