"""R-EDL: evidential deep learning with a relaxed prior weight."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from daedl import losses
from daedl.checks import NonNegative, Whole
from daedl.dirichlet import Dirichlet
from daedl.methods.re_edl import ReEDL
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class REDL(ReEDL):
    """α = softplus(z) + λ, trained with ‖y − P‖² + μ_t KL(Dir(α̃) ‖ Dir(λ1)), μ_t = μ min(1, t / 10).

    P = α / α₀, and α̃ = λy + (1 − y) ⊙ α: the divergence excludes the evidence of the true class. The
    later Re-EDL omits the divergence.

    Attributes:
        prior: λ, the prior weight; published for both MNIST and CIFAR-10.
        kl_weight: μ.
        anneal_epochs: epochs until the full weight is reached; it is 0 in the first epoch.
    """

    name = "r-edl"
    paper = "Chen, Gao and Xu, R-EDL: Relaxing Nonessential Settings of Evidential Deep Learning, ICLR 2024"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    caveats = "The prior weight was tuned; with a small one α can be below 1, which is a sparse Dirichlet."

    kl_weight: NonNegative = 1.0
    anneal_epochs: Whole = 10

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        weight = losses.annealed(self.kl_weight, epoch, self.anneal_epochs)
        error = super().loss(outputs, targets, epoch)
        return error + weight * self.divergence(self.log_alpha(outputs.logits), targets)

    def divergence(self, log_alpha: Tensor, targets: Tensor) -> Tensor:
        """KL(Dir(λy + (1 − y) ⊙ α) ‖ Dir(λ1)), (B,)."""
        prior = torch.full_like(log_alpha, math.log(self.prior))
        onehot = F.one_hot(targets, log_alpha.shape[-1]).bool()
        return Dirichlet(torch.where(onehot, prior, log_alpha)).kl(Dirichlet(prior))
