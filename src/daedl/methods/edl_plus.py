"""EDL with exponential parameterisation: DAEDL without density and spectral normalisation."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from daedl import losses
from daedl.checks import NonNegative, Whole
from daedl.methods.base import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Added to α in the loss, as in the published code.
FLOOR = 1e-6
# Classes of the datasets for which the published KL weight was chosen.
PUBLISHED_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class EDLPlus(Method):
    """α = exp(z), trained with E‖y − π‖² + λ KL(Dir(α̃) ‖ Dir(1)), λ = 0.05 min(1, 10 / C)².

    The "Exp" row of the paper's ablation, which has ten classes. The KL is a sum over C − 1 wrong classes,
    and the gradient of the error is in proportion to 1 / C before training: with a constant λ, networks
    with many classes do not learn, and with λ in proportion to 1 / C those with 1,000 don't. As in the
    published code, the loss adds 1e-6 to α: without it, the KL and its gradient grow like exp(−z).

    Attributes:
        kl_weight: λ for up to ten classes.
        anneal_epochs: epochs until the full weight is reached; 0 for a constant weight.
        reduction: the published code sums over the batch.
    """

    name = "edl+"
    paper = (
        "Yoon and Kim, Uncertainty Estimation by Density Aware Evidential Deep Learning, ICML 2024"
    )
    published_training = (
        "Adam 1e-3, times 0.95 per epoch, batch size 64, at most 50 epochs (CIFAR-10: 100)"
    )
    caveats = "Without a density, evidence can grow with the distance from the training data."

    kl_weight: NonNegative = 0.05
    anneal_epochs: Whole = 0
    reduction: Literal["mean", "sum"] = "sum"

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Expected MSE plus the weighted KL, (B,)."""
        logits = outputs.logits
        weight = losses.annealed(self.kl_weight, epoch, self.anneal_epochs)
        weight *= min(1.0, PUBLISHED_CLASSES / logits.shape[-1]) ** 2
        log_alpha = torch.logaddexp(logits, logits.new_tensor(math.log(FLOOR)))
        return losses.evidential(log_alpha, targets, weight, "none")

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Dirichlet with α = exp(z)."""
        del fitted
        return Prediction.from_dirichlet(outputs.logits)
