"""Monte Carlo dropout."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from daedl.checks import Number, Whole
from daedl.methods.softmax import Softmax
from daedl.networks import Network
from daedl.networks.headed import stack_outputs
from daedl.outputs import Outputs, evaluating
from daedl.prediction import Prediction

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh)


@dataclass(frozen=True, kw_only=True)
class MCDropout(Softmax):
    """p̄ = (1/K) Σ_k softmax(z_k) over K passes with active dropout; trained as softmax.

    The epistemic score is the mutual information H(p̄) − (1/K) Σ_k H(p_k). All other layers are in eval
    mode. If the network has no dropout, it is added after each activation, as in the ConvNet of the
    published comparisons (there before the pooling, here after it, because ReLU follows the pooling).

    Attributes:
        rate: rate of the added dropout; existing dropout layers keep their rate.
        num_passes: K, at least 2. Not published for the comparison; 10 is a common default.
        seed: seed of the dropout masks, which makes predictions deterministic.
    """

    name = "dropout"
    title = "Dropout"
    paper = "Gal and Ghahramani, Dropout as a Bayesian Approximation, ICML 2016"
    published_training = "cross-entropy with dropout; rate and number of passes not published"
    caveats = (
        "Needs many passes. The scores depend on the rate, and no rate suits all data. Masks depend on "
        "the position in the batch, so scores vary slightly with the composition of the batch."
    )

    rate: Annotated[float, Number(0, above=True, limit=1)] = 0.2
    num_passes: Annotated[int, Number(2, whole=True)] = 10
    seed: Whole = 0

    @property
    def passes(self) -> int:
        return self.num_passes

    def prepare(self, network: Network) -> Network:
        """Add dropout after each activation, unless the network has dropout layers."""
        super().prepare(network)
        if any(isinstance(each, DROPOUTS) and each.p > 0 for each in network.modules()):
            return network
        activations = [
            (parent, name, child)
            for parent in network.modules()
            for name, child in parent.named_children()
            if isinstance(child, ACTIVATIONS)
        ]
        if not activations:
            raise ValueError(
                "the network has neither a Dropout nor an activation module such as nn.ReLU; expected "
                "one of them: build it with dropout layers"
            )
        for parent, name, child in activations:
            setattr(parent, name, nn.Sequential(child, nn.Dropout(self.rate)))
        return network

    def forward(self, network: nn.Module, images: Tensor) -> Outputs:
        """Mean features (B, H) and stacked logits (B, K, C) of K passes with dropout."""
        with evaluating(network), _seeded(self.seed, images.device):
            for module in network.modules():
                if isinstance(module, DROPOUTS):
                    module.train()
            outputs = stack_outputs([network(images) for _ in range(self.num_passes)])
        return outputs._replace(features=outputs.features.mean(1))

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        return Prediction.from_several(outputs.logits.softmax(-1))


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators of the CPU and `device` inside the block; restore their states after it."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:  # only this device: the state of others would not be restored
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
