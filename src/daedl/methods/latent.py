"""What methods share that read a latent, which the last layer gives in place of the logits."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from daedl.methods.base import Method
from daedl.networks import Headed, Network
from daedl.networks.headed import replace_last_layer
from daedl.spectral import normalization, remove_spectral_norm, spectral_normalize


@dataclass(frozen=True, kw_only=True)
class OnLatent(Method):
    """A head behind a latent; not a method itself.

    Attributes:
        latent: dimensions of the latent.
    """

    latent: int = 6

    @abstractmethod
    def head(self, num_classes: int) -> nn.Module:
        """A new head, from Outputs whose logits are the latent (B, latent) to those of the method."""

    @property
    def num_features(self) -> int:
        """Columns of the features that the head gives."""
        return self.latent

    def prepare(self, network: Network) -> Network:
        """Let the last layer give the latent and put the head behind; a network that has it stays."""
        self.require_normalization(network)  # before anything is replaced
        if network.plain is network:
            present = normalization(network)
            replace_last_layer(remove_spectral_norm(network), self.latent)
            head = self.head(network.num_classes).to(next(network.parameters()))
            network = Headed(network, head, self.num_features)
            if present is not None:  # anew, as the last layer is another one
                spectral_normalize(network, present)
        return super().prepare(network)

    def has_head(self, network: Network) -> bool:
        """Whether `network` has a head that is like a new one."""
        with torch.device("meta"):  # names and shapes alone: nothing is allocated or drawn
            new = self.head(network.num_classes)
        return isinstance(network, Headed) and _shapes(network.head) == _shapes(new)


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}
