"""The beta-NLL."""

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from daedl.checks import Number
from daedl.methods.regression.gaussian import GaussianNLL
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class BetaNLL(GaussianNLL):
    """N(μ(x), σ²(x)), trained with ⌊σ^{2β}⌋ (½ ln σ² + (y − μ)² / (2σ²)); ⌊·⌋ stops gradients.

    The weight makes the gradient of the mean depend less on the predicted variance: not at all with β = 1, as
    for least squares. Validation uses the likelihood, β = 0.

    Attributes:
        beta: β in [0, 1]; ½ as recommended.
    """

    name = "beta-nll"
    title = "β-NLL"
    paper = (
        "Seitzer et al., On the Pitfalls of Heteroscedastic Uncertainty Estimation with Probabilistic "
        "Neural Networks, ICLR 2022"
    )
    caveats = "No epistemic variance."

    beta: Annotated[float, Number(0, limit=1 + 1e-9)] = 0.5

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Weighted likelihood, mean over targets."""
        if epoch == math.inf:
            return super().loss(outputs, targets, epoch)
        mean, log_variance = self.parameters(outputs)
        squares = (targets - mean).square() * (-log_variance).exp()
        losses = 0.5 * (math.log(2 * math.pi) + log_variance + squares)
        return ((self.beta * log_variance.detach()).exp() * losses).mean(-1)
