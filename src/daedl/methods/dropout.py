"""Monte Carlo dropout."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from daedl.checks import require_whole
from daedl.methods.softmax import Softmax
from daedl.networks import Network
from daedl.networks.headed import side_by_side
from daedl.outputs import Outputs, evaluating
from daedl.prediction import Prediction

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh)


@dataclass(frozen=True, kw_only=True)
class MCDropout(Softmax):
    """p̄ = (1/K) Σ_k softmax(z_k), z_k from passes with dropout kept on; trained as softmax.

    The epistemic score is the mutual information H(p̄) − (1/K) Σ_k H(p_k): how much passes disagree. All
    other layers stay in eval mode. A network without dropout is given it after each activation, as the
    ConvNet of the published comparisons has it (there before the pooling, here after it, where ReLU is).

    Attributes:
        rate: of the dropout that is put in; a network that has its own keeps that.
        num_passes: K. The comparison's number isn't published; 10 is the common default.
        seed: of the passes, so that a prediction can be repeated.
    """

    name = "dropout"
    paper = "Gal and Ghahramani, Dropout as a Bayesian Approximation, ICML 2016"
    published_training = "cross-entropy with dropout; rate and passes of the comparison unpublished"
    caveats = (
        "Needs many passes. Its rate decides what it finds uncertain; none is right for all data. Masks "
        "belong to places in a batch, so that an image's figures change a little with its company."
    )

    rate: float = 0.2
    num_passes: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 1:
            raise ValueError(f"rate is {self.rate}; expected a share between 0 and 1: take 0.2")
        require_whole("num_passes", self.num_passes, 2, "10, as one pass can't disagree")
        require_whole("seed", self.seed, 0, "0")

    @property
    def passes(self) -> int:
        """K."""
        return self.num_passes

    def prepare(self, network: Network) -> Network:
        """Put dropout after each activation, unless the network has its own."""
        super().prepare(network)
        if any(isinstance(each, DROPOUTS) and each.p > 0 for each in network.modules()):
            return network
        found = [
            (parent, name, child)
            for parent in network.modules()
            for name, child in parent.named_children()
            if isinstance(child, ACTIVATIONS)
        ]
        if not found:
            raise ValueError(
                "the network has neither a Dropout nor an activation module such as nn.ReLU; expected "
                "one of them: build it with dropout layers"
            )
        for parent, name, child in found:
            setattr(parent, name, nn.Sequential(child, nn.Dropout(self.rate)))
        return network

    def forward(self, network: nn.Module, images: Tensor) -> Outputs:
        """Mean features (B, H) and logits (B, K, C) of K passes with dropout."""
        with evaluating(network), _seeded(self.seed, images.device):
            for module in network.modules():
                if isinstance(module, DROPOUTS):
                    module.train()
            features, logits = side_by_side([network(images) for _ in range(self.num_passes)])
        return Outputs(features.mean(1), logits)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The mean of the passes' probabilities, and their disagreement."""
        del fitted
        return Prediction.from_several(outputs.logits.softmax(-1))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from `seed`; afterwards the random state is what it was."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:  # this device alone: no other's state is put back
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
