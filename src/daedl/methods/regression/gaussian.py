"""A Gaussian whose mean and variance depend on the input."""

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from daedl.methods.regression.base import RegressionMethod
from daedl.nig import NIG
from daedl.outputs import Outputs

# Smallest variance of a standardised target (chosen, as in the code of deep ensembles).
LOG_SMALLEST = math.log(1e-6)


@dataclass(frozen=True, kw_only=True)
class GaussianNLL(RegressionMethod):
    """N(μ(x), σ²(x)), trained with ½ ln σ² + (y − μ)² / (2σ²).

    ln σ² = b + softplus(z − b) of the network's output z, with b = ln 10⁻⁶ for standardised targets.
    """

    name = "gaussian"
    title = "Gaussian NLL"
    paper = (
        "Nix and Weigend, Estimating the Mean and Variance of the Target Probability Distribution, "
        "ICNN 1994"
    )
    caveats = (
        "Where the network starts with a large error it predicts a large variance, which lowers the gradient "
        "of the mean: some regions are never learned. No epistemic variance."
    )

    @property
    def rows(self) -> int:
        return 2

    def parameters(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """Mean and log variance, (B, D)."""
        mean, raw = outputs.logits.unbind(1)
        return mean, LOG_SMALLEST + F.softplus(raw - LOG_SMALLEST)

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """½ ln 2πσ² + (y − μ)² / (2σ²), mean over targets."""
        mean, log_variance = self.parameters(outputs)
        squares = (targets - mean).square() * (-log_variance).exp()
        return 0.5 * (math.log(2 * math.pi) + log_variance + squares).mean(-1)

    def nig(self, outputs: Outputs) -> NIG:
        mean, log_variance = self.parameters(outputs)
        return NIG.normal(mean, log_variance.exp())
