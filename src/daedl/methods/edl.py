"""Evidential deep learning."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from daedl import losses
from daedl.checks import NonNegative, Whole
from daedl.methods.base import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"softplus": F.softplus, "relu": F.relu}


@dataclass(frozen=True, kw_only=True)
class EDL(Method):
    """α = 1 + h(z), trained with E‖y − π‖² + λ_t KL(Dir(α̃) ‖ Dir(1)), λ_t = λ min(1, t / 10).

    The original paper uses h = ReLU. The DAEDL tables were computed with softplus, the default here.

    Attributes:
        activation: h, "softplus" or "relu".
        kl_weight: λ.
        anneal_epochs: epochs until the full weight is reached; it is 0 in the first epoch.
    """

    name = "edl"
    paper = "Sensoy et al., Evidential Deep Learning to Quantify Classification Uncertainty, NeurIPS 2018"
    published_training = "Adam 1e-3 (MNIST) or 1e-4 (CIFAR-10), batch size 64, at most 200 epochs"
    caveats = (
        "At high learning rates evidence, and with it the gradient, can vanish on in-distribution "
        "images. Probabilities are underconfident by construction."
    )

    activation: Literal["softplus", "relu"] = "softplus"
    kl_weight: NonNegative = 1.0
    anneal_epochs: Whole = 10

    def log_alpha(self, logits: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](logits).log1p()

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        weight = losses.annealed(self.kl_weight, epoch, self.anneal_epochs)
        return losses.evidential(self.log_alpha(outputs.logits), targets, weight, "none")

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        logits = outputs.logits  # also for labels, because all α are equal where h is 0
        return Prediction.from_dirichlet(self.log_alpha(logits), labels=logits.argmax(-1))
