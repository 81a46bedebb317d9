"""Flexible evidential deep learning."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl import losses
from daedl.checks import Count
from daedl.dirichlet import Dirichlet
from daedl.methods.base import Method
from daedl.networks import Network
from daedl.networks.headed import Headed
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.spectral import SpectralNorm


@dataclass(frozen=True, kw_only=True)
class FEDL(Method):
    """A flexible Dirichlet Σ_k p_k Dir(α + τe_k): α = exp(g₁), p = softmax(g₂), τ = softplus(g₃).

    g₁ are the network's logits; g₂ and g₃ are heads on its features. Trained with E‖y − π‖² + ‖y − p‖²,
    which has no weight to tune. With μ = E π:

        epistemic  EU = Σ_c Var π_c
        aleatoric  AU = 1 − Σ_c μ_c² − EU = E(1 − Σ_c π_c²)

    Unlike in the released code, g₁ consists of the network's own layers after the features: in `ConvNet`
    one more dense layer, in `VGG16` two layers of width 512 with dropout instead of one of width 256 with
    batch normalisation.

    Attributes:
        head_width: hidden units of g₂ and g₃; published.
        spectral: spectral normalisation of the network (features and g₁) without the heads; published.
        reduction: the published code sums over the batch.
    """

    name = "f-edl"
    paper = (
        "Yoon and Kim, Uncertainty Estimation by Flexible Evidential Deep Learning, NeurIPS 2025"
    )
    published_training = (
        "Adam 5e-4, times 0.1 every 30 epochs (20 in the code), batch size 64, 100 epochs"
    )
    extra_cost = "two small heads and spectral normalisation"
    caveats = (
        "The heads are not spectrally normalised, so p and τ are arbitrary far from the training data. "
        "The predicted distribution is a mixture, which has no single α."
    )

    spectral: SpectralNorm | None = SpectralNorm()  # noqa: RUF009 (frozen)
    reduction: Literal["mean", "sum"] = "sum"
    head_width: Count = 256

    def prepare(self, network: Network) -> Network:
        """Normalise the network, and add the heads unless it has them already."""
        super().prepare(network)
        if self.has_head(network):
            return network
        heads = Heads(network.parts[-1], network.num_classes, self.head_width)
        heads.to(next(network.parameters()))
        return Headed(network, heads, network.num_features)

    def has_head(self, network: Network) -> bool:
        """Whether `network` has such heads of the same width."""
        head = network.head if isinstance(network, Headed) else None
        return isinstance(head, Heads) and head.width == self.head_width

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Σ_c (y_c − μ_c)² + Σ_c Var π_c + Σ_c (y_c − p_c)², (B,)."""
        flexible = FlexibleDirichlet.of(outputs.logits)
        expected = losses.expected_mse(flexible.averaged.log_alpha, targets, "none")
        allocation = losses.squared_error(flexible.log_p, targets, "none")
        return expected + flexible.variance_between.sum(-1) + allocation

    def predict_labels(self, outputs: Outputs) -> Tensor:
        return FlexibleDirichlet.of(outputs.logits).averaged.mean.argmax(-1)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        flexible = FlexibleDirichlet.of(outputs.logits)
        return Prediction.from_probs(
            flexible.averaged.mean,
            epistemic=flexible.variance.sum(-1),
            aleatoric=flexible.expected_gini,
        )


class Heads(nn.Module):
    """Stacks g₁ (logits), g₂ (allocation) and g₃ (dispersion, expanded) to (B, 3, C).

    The heads have layers H - width - C and H - width - 1, with ReLU and LayerNorm in between, as in the
    released code.
    """

    def __init__(self, num_features: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.allocation, self.dispersion = (
            nn.Sequential(
                nn.Linear(num_features, width),
                nn.ReLU(),
                nn.LayerNorm(width),
                nn.Linear(width, outputs),
            )
            for outputs in (num_classes, 1)
        )

    def forward(self, outputs: Outputs) -> Outputs:
        """Map features (B, H) and logits (B, C) to the same features and g₁, g₂, g₃ (B, 3, C)."""
        features, logits = outputs.last_part, outputs.logits
        rows = (logits, self.allocation(features), self.dispersion(features).expand_as(logits))
        return outputs._replace(logits=torch.stack(rows, -2))


@dataclass(frozen=True)
class FlexibleDirichlet:
    """Σ_k p_k Dir(α + τe_k) over C classes, given ln α (..., C), ln p (..., C) and ln τ (...)."""

    log_alpha: Tensor
    log_p: Tensor
    log_tau: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> "FlexibleDirichlet":
        """Construct from stacked g₁, g₂ and g₃, (..., 3, C)."""
        alpha, allocation, dispersion = logits.unbind(-2)
        return cls(alpha, allocation.log_softmax(-1), _log_softplus(dispersion[..., 0]))

    @property
    def averaged(self) -> Dirichlet:
        """Dir(α + τp) with precision S = α₀ + τ: it has the same mean μ and a smaller variance."""
        return Dirichlet(torch.logaddexp(self.log_alpha, self.log_tau.unsqueeze(-1) + self.log_p))

    @property
    def variance_between(self) -> Tensor:
        """Variance between components, τ² p_c (1 − p_c) / S(S + 1), (..., C)."""
        p, dispersed = self.log_p.exp(), torch.sigmoid(self.log_tau - self.log_alpha.logsumexp(-1))
        return (dispersed.square() * self._peakedness).unsqueeze(-1) * _disagreement(p, p)

    @property
    def variance(self) -> Tensor:
        """Var π_c = μ_c (1 − μ_c) / (S + 1) + τ² p_c (1 − p_c) / S(S + 1), (..., C)."""
        mean, peak = self.averaged.mean, torch.sigmoid(-self.averaged.log_precision)
        return peak.unsqueeze(-1) * _disagreement(mean, mean) + self.variance_between

    @property
    def expected_gini(self) -> Tensor:
        """E(1 − Σ_c π_c²) = 1 − Σ_c μ_c² − Σ_c Var π_c, (...).

        Written with m = α / α₀ and w = τ / S as S / (S + 1) · ((1 − w)² Σ_c m_c (1 − m_c)
        + 2w (1 − w) Σ_c m_c (1 − p_c)), which has no cancellation.
        """
        odds = self.log_tau - self.log_alpha.logsumexp(-1)
        w, rest = torch.sigmoid(odds), torch.sigmoid(-odds)
        m, p = self.log_alpha.softmax(-1), self.log_p.exp()
        mixed = rest * _disagreement(m, m).sum(-1) + 2 * w * _disagreement(m, p).sum(-1)
        return self._peakedness * rest * mixed

    @property
    def _peakedness(self) -> Tensor:
        """S / (S + 1), (...)."""
        return torch.sigmoid(self.averaged.log_precision)


def _disagreement(p: Tensor, q: Tensor) -> Tensor:
    """p_c (1 − q_c), (..., C): probability that draws from p and q (..., C) are c and another class.

    For the largest q_c, 1 − q_c is computed as the sum of the others, which avoids rounding to 0.
    """
    largest = q.argmax(-1, keepdim=True)
    others = q.scatter(-1, largest, 0.0).sum(-1, keepdim=True)
    return p * (1 - q).scatter(-1, largest, others)


def _log_softplus(x: Tensor) -> Tensor:
    """ln softplus(x), finite where softplus(x) underflows."""
    # Below −15, ln(1 + eˣ) = eˣ − e²ˣ / 2 to 13 digits (chosen).
    low = x.clamp_max(-15.0)
    direct = F.softplus(x.clamp_min(-15.0)).log()
    return torch.where(x < -15.0, low - low.exp() / 2, direct)
