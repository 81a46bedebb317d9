"""Natural posterior networks: a classifier, and evidence from one normalising flow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import Count, NonNegative, Whole
from daedl.density.flow import RadialFlow
from daedl.methods.base import BaseMethod, Phase
from daedl.methods.postnet import PosteriorMethod
from daedl.names import look_up
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# ln N_H per latent dimension, by name of the budget.
BUDGETS: Mapping[str, float] = MappingProxyType(
    {"constant": 0.0, "exp-half": 0.5, "exp": 1.0, "normal": 0.5 * math.log(4 * math.pi)}
)
# Published: ln n is clamped to ± this value.
LARGEST = 30.0


def log_counts(log_q: Tensor, budget: str, latent: int) -> Tensor:
    """ln n = ln q + ln N_H clamped to ± 30, with the gradient of ln q."""
    log_n = log_q + BUDGETS[budget] * latent
    # Straight-through gradient of the clamp; log_n − log_n is exactly 0, so the value is exact.
    return log_n.detach().clamp(-LARGEST, LARGEST) + (log_n - log_n.detach())


def flow_phases(
    joint: BaseMethod, likelihood: BaseMethod, warmup_epochs: int, finetune: bool
) -> tuple[Phase, ...]:
    """Warm-up of the flow, joint training and fine-tuning of the flow."""
    warmup = Phase(likelihood, "warm-up", warmup_epochs, trains="head.flow")
    finetuning = Phase(likelihood, "fine-tuning", trains="head.flow")
    return (
        *([warmup] if warmup_epochs else []),
        Phase(joint),
        *([finetuning] if finetune else []),
    )


class NatPNHead(nn.Module):
    """A linear classifier χ and one flow q, both on the latent."""

    def __init__(self, latent: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(latent, num_classes)
        self.flow = RadialFlow(1, latent, depth)

    def forward(self, outputs: Outputs) -> Outputs:
        """Latent (B, latent), and logits ln q + ln χ_c (B, C), whose logsumexp is ln q."""
        latent = outputs.logits
        return Outputs(latent, self.flow(latent) + self.classifier(latent).log_softmax(-1))


@dataclass(frozen=True, kw_only=True)
class NatPN(PosteriorMethod):
    """α = 1 + n χ, n = N_H q(z) clamped to e^±30, trained with E[−ln π_y] − λ H(Dir(α)).

    χ is the softmax of a linear classifier on the latent z of dimension H = 16, q a radial flow, N_H a
    certainty budget. There are three training phases: warm-up of the flow on −ln q(z), joint training,
    fine-tuning of the flow on −ln q(z). Logits are ln q(z) + ln χ_c; budget and clamping are applied
    afterwards, so the phases on the likelihood use the unclamped ln q.

    Differences from the released code:
    - All phases use the batch size, learning rate and schedule of `fit`. The released code uses a batch
      size of 1024 and a learning rate of 1e-3, so the flow takes far fewer steps alone.
    - Early stopping requires any improvement; there 1e-3 of the loss, 1e-2 of the likelihood.
    - Fine-tuning keeps the epoch with the highest validation likelihood. A released version selects the
      best checkpoint without stating that larger is better, which keeps the lowest.
    - The aleatoric score is 1 − max m, as for most methods here; there it is the entropy of m.

    Attributes:
        budget: ln N_H is 0 ("constant"), H/2 ("exp-half"), H ("exp") or ½ ln(4π) H ("normal").
        warmup_epochs: epochs of the warm-up; 0 to skip it.
        finetune: whether to fine-tune the flow, for at most the `max_epochs` of `fit`.
    """

    name = "natpn"
    title = "NatPN"
    paper = (
        "Charpentier et al., Natural Posterior Network: Deep Bayesian Uncertainty for Exponential "
        "Family Distributions, ICLR 2022"
    )
    published_training = (
        "Adam 1e-3, batch size 1024, at most 100 epochs per phase, early stopping on the validation loss "
        "(fine-tuning: on the likelihood)"
    )
    extra_cost = (
        "one flow of 8 radial layers in 16 dimensions; warm-up and fine-tuning, which may double the "
        "number of epochs"
    )
    caveats = (
        "One radial flow can hardly model one cluster per class, so its density may be higher between "
        "classes than on the data. While the flow is trained alone, dropout in the encoder is active, so "
        "the flow is fitted to more dispersed latents than at prediction, and batch normalisation updates "
        "its running statistics."
    )

    latent: Count = 16
    depth: Count = 8
    entropy_weight: NonNegative = 1e-5
    budget: str = "normal"
    warmup_epochs: Whole = 3
    finetune: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(BUDGETS, self.budget, "budget")

    def head(self, num_classes: int) -> NatPNHead:
        return NatPNHead(self.latent, self.depth, num_classes)

    def phases(self) -> tuple[Phase, ...]:
        likelihood = _Likelihood(**{each.name: getattr(self, each.name) for each in fields(self)})
        return flow_phases(self, likelihood, self.warmup_epochs, self.finetune)

    def log_alpha(self, logits: Tensor) -> Tensor:
        """ln(1 + n χ_c), with ln n = ln q + ln N_H clamped to its bounds."""
        log_q = logits.logsumexp(-1, keepdim=True)
        log_n = log_counts(log_q, self.budget, self.latent)
        return F.softplus(log_n + logits.log_softmax(-1))

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Dirichlet with epistemic score −ln q(z), as in the paper's code.

        It ranks images as −ln α₀ does, without its ties beyond the bounds.
        """
        prediction = super().predict(outputs, fitted)
        return replace(prediction, epistemic=-outputs.logits.logsumexp(-1))


class _Likelihood(NatPN):
    """Training of the flow alone."""

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """−ln q(z), (B,)."""
        return -outputs.logits.logsumexp(-1)
