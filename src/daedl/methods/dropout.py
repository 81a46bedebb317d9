"""Monte Carlo dropout."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from daedl.checks import Number, Whole
from daedl.methods.base import BaseMethod
from daedl.methods.softmax import Softmax
from daedl.networks import Network
from daedl.networks.headed import stack_outputs
from daedl.outputs import Outputs
from daedl.prediction import Prediction

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh)
# Whether a dropout function has one value per channel.
FUNCTIONS = {
    F.dropout: False,
    F.alpha_dropout: False,
    F.dropout1d: True,
    F.dropout2d: True,
    F.dropout3d: True,
}
SATURATION = 1.7580993408473766  # λα of SELU; a dropped value of AlphaDropout is −λα


@dataclass(frozen=True, kw_only=True)
class DropoutPasses(BaseMethod):
    """K passes with active dropout; a mixin, listed before the method that defines the training.

    Attributes: see `MCDropout`.
    """

    rate: Annotated[float, Number(0, above=True, limit=1)] = 0.2
    num_passes: Annotated[int, Number(2, limit=1001, whole=True)] = 10  # limit chosen
    seed: Whole = 0

    @property
    def passes(self) -> int:
        return self.num_passes

    def prepare(self, network: Network) -> Network:
        """Add dropout after each activation, unless the network has dropout layers."""
        network = super().prepare(network)
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
        with _Masks(self.seed, next(network.parameters()).device):
            outputs = stack_outputs([network(images) for _ in range(self.num_passes)])
        return outputs._replace(features=outputs.features.mean(1))


@dataclass(frozen=True, kw_only=True)
class MCDropout(DropoutPasses, Softmax):
    """p̄ = (1/K) Σ_k softmax(z_k) over K passes with active dropout; trained as softmax.

    The epistemic score is the mutual information H(p̄) − (1/K) Σ_k H(p_k). All other layers are in eval
    mode. If the network has no dropout, it is added after each activation, as in the ConvNet of the
    published comparisons (there before the pooling, here after it, because ReLU follows the pooling).

    Attributes:
        rate: rate of the added dropout; existing dropout layers keep their rate.
        num_passes: K, from 2 to 1000. Not published for the comparison; 10 is a common default.
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

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        return Prediction.from_several(outputs.logits.softmax(-1))


class _Masks(TorchFunctionMode):
    """Makes dropout active in eval mode, with masks from a separate generator.

    It applies to the current thread only, and changes neither modules nor the global random state.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        super().__init__()
        self.generator = torch.Generator(device).manual_seed(seed)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replaces calls of dropout functions; calls all other functions."""
        if func not in FUNCTIONS:
            return func(*args, **(kwargs or {}))
        inputs, rate = args[0], kwargs["p"]
        if rate in (0, 1):
            return inputs * (1 - rate)
        # Masks of the same layout as those of torch, so that results equal its dropout with this seed.
        per_channel = FUNCTIONS[func]
        values = inputs.new_empty(_channels(inputs)) if per_channel else torch.empty_like(inputs)
        kept = values.bernoulli_(1 - rate, generator=self.generator)
        if func is not F.alpha_dropout:
            return inputs * kept.div_(1 - rate)
        # Keeps mean and variance (Klambauer et al., Self-Normalizing Neural Networks, 2017).
        scale = ((1 - rate) * (1 + rate * SATURATION**2)) ** -0.5
        return scale * (inputs * kept + SATURATION * (rate - 1 + kept))


def _channels(inputs: Tensor) -> tuple[int, ...]:
    """Shape (B, C, 1, ...) of one value per channel."""
    return (*inputs.shape[:2], *[1] * (inputs.ndim - 2))
