"""Natural posterior networks for numbers: a Gaussian, and evidence from one normalising flow."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from daedl.checks import Count, NonNegative, Number, Positive, Whole
from daedl.density.flow import RadialFlow
from daedl.methods.base import Phase
from daedl.methods.natpn import BUDGETS, flow_phases, log_counts
from daedl.methods.regression.base import RegressionMethod
from daedl.names import look_up
from daedl.nig import NIG
from daedl.outputs import Outputs


class NormalHead(nn.Module):
    """Mean and log variance of D targets, linear in the latent, and ln q of one flow."""

    def __init__(self, latent: int, depth: int, targets: int) -> None:
        super().__init__()
        self.linear = nn.Linear(latent, 2 * targets)
        self.flow = RadialFlow(1, latent, depth)

    def forward(self, outputs: Outputs) -> Outputs:
        """Latent (B, latent), and logits (B, 3, D): mean, log variance and ln q."""
        latent = outputs.logits
        normal = self.linear(latent).unflatten(-1, (2, -1))
        log_q = self.flow(latent)[..., None].expand(-1, 1, normal.shape[-1])
        return Outputs(latent, torch.cat((normal, log_q), 1))


@dataclass(frozen=True, kw_only=True)
class NatPNNormal(RegressionMethod):
    """A prior NIG(0, ν₀, α₀, β₀), updated with n = N_H q(z) observations of the network's N(μ, σ²).

    Trained with −E[ln N(y; μ, σ²)] − λ H(NIG). Budget N_H, clamping, the three training phases and
    differences from the released code are those of `NatPN`. There also α₀ = ½, with which predictions
    without evidence have no variance.

    Attributes:
        latent, depth, entropy_weight, budget, warmup_epochs, finetune: see `NatPN`.
        prior_nu, prior_alpha: ν₀ and α₀.
        prior_std: deviation of the noise under the prior, for standardised targets; β₀ = (α₀ − 1) std².
    """

    name = "natpn-normal"
    title = "NatPN"
    paper = (
        "Charpentier et al., Natural Posterior Network: Deep Bayesian Uncertainty for Exponential "
        "Family Distributions, ICLR 2022"
    )
    published_training = "Adam; early stopping on the validation loss, in each of three phases"
    extra_cost = "one flow of 8 radial layers in 16 dimensions; warm-up and fine-tuning of the flow"
    caveats = (
        "A latent of 16 dimensions follows the last hidden layer, so the network is larger. Far from the "
        "data the prediction is a prior that is ten times as wide as the targets."
    )
    has_epistemic = True

    latent: Count = 16
    depth: Count = 8
    entropy_weight: NonNegative = 1e-5
    budget: str = "normal"
    warmup_epochs: Whole = 3
    finetune: bool = True
    prior_nu: Positive = 1.0
    prior_alpha: float = 2.0
    prior_std: Positive = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(BUDGETS, self.budget, "budget")
        Number(1, above=True).require("prior_alpha", self.prior_alpha, "2.0")

    @property
    def rows(self) -> int:
        return 3

    def last_width(self, num_classes: int) -> int:
        return self.latent

    def features_of(self, network: nn.Module) -> int:
        return self.latent

    def head(self, num_classes: int) -> NormalHead:
        return NormalHead(self.latent, self.depth, num_classes)

    def phases(self) -> tuple[Phase, ...]:
        likelihood = _Likelihood(**{each.name: getattr(self, each.name) for each in fields(self)})
        return flow_phases(self, likelihood, self.warmup_epochs, self.finetune)

    def nig(self, outputs: Outputs) -> NIG:
        mean, log_variance, log_q = outputs.logits.unbind(1)
        evidence = NIG.evidence(mean, log_variance, log_counts(log_q, self.budget, self.latent))
        zero = torch.zeros_like(mean)
        nu, alpha, beta = (
            torch.full_like(mean, each).log()
            for each in (
                self.prior_nu,
                self.prior_alpha,
                (self.prior_alpha - 1) * self.prior_std**2,
            )
        )
        return NIG(zero, nu, alpha, beta).posterior(evidence, zero)

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        nig = self.nig(outputs)
        return -(nig.expected_log_prob(targets) + self.entropy_weight * nig.entropy()).mean(-1)


class _Likelihood(NatPNNormal):
    """Training of the flow alone."""

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """−ln q(z), (B,)."""
        return -outputs.logits[:, 2].mean(-1)
