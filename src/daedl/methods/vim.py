"""Virtual-logit matching: the features' residual outside a principal subspace, as one more logit."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from daedl.checks import Count
from daedl.density import ClassStatistics
from daedl.distributed import sum_across
from daedl.methods.fitted import Fitted
from daedl.methods.post_hoc import PostHoc
from daedl.outputs import Outputs

# Eigenvalues of the features' scatter below this share of the largest are rounding of float32, whose
# square is 1e-14 (chosen).
_ROUNDING = 1e-10


class VirtualLogit(Fitted):
    """Computes α ‖Rᵀ (f − o)‖ with o (H,), R (H, H − D) and a scalar α."""

    origin: Tensor
    residual: Tensor
    scale: float

    def forward(self, features: Tensor) -> Tensor:
        """Virtual logits (B,) of features (B, H)."""
        outside = (features.to(self.origin) - self.origin) @ self.residual
        norms: Tensor = torch.linalg.vector_norm(outside, dim=1)
        return self.scale * norms


@dataclass(frozen=True, kw_only=True)
class ViM(PostHoc):
    """Epistemic: v − ln Σ_c exp(z_c) with the virtual logit v = α ‖Rᵀ (f − o)‖; p = softmax(z).

    R spans the complement of the D principal directions of the training features f_i around o, and
    α = Σ_i max_c z_ic / Σ_i ‖Rᵀ (f_i − o)‖. The published score, the last entry of softmax([z, v]), has
    the same ranking: the score here is its log odds, which do not round to 0 or 1.

    o = −W⁺ b for a last layer z = W f + b. Here W and b are fitted to the training features and logits by
    least squares. This recovers the last layer, except in directions in which the features do not vary,
    and approximates several layers after the features. Of features of several blocks, the last are used.

    Attributes:
        dimension: D; None for 1000 of H ≥ 2048 features, 512 of H ≥ 768, otherwise H / 2.
    """

    name = "vim"
    title = "ViM"
    paper = "Wang et al., ViM: Out-of-Distribution with Virtual-Logit Matching, CVPR 2022"
    state = VirtualLogit
    extra_cost = "one pass over the training data"
    caveats = (
        "D was selected for features of large networks; half of a small feature space is arbitrary."
    )

    dimension: Count | None = None

    def fit(self, outputs: Outputs, targets: Tensor) -> VirtualLogit:
        features, width = outputs.last_part, outputs.last_part.shape[1]
        origin, moments = _origin_and_moments(features, outputs.logits)
        vectors = torch.linalg.eigh(moments).eigenvectors[:, : width - self._dimension(width)]
        # Contiguous, as in a loaded file: another layout would be rounded differently.
        residual = vectors.to(features).contiguous()
        fitted = VirtualLogit(origin=origin.to(features), residual=residual, scale=1.0)
        away = torch.linalg.vector_norm(features - fitted.origin, dim=1)
        sums = [each.double().sum() for each in (outputs.logits.amax(-1), fitted(features), away)]
        largest, norms, lengths = sum_across(torch.stack(sums)).tolist()
        # Features may lie in D dimensions up to rounding, which α should not amplify.
        fitted.scale = largest / (max(norms, _ROUNDING**0.5 * lengths) or 1.0)
        return fitted

    def score(self, outputs: Outputs, fitted: Any) -> Tensor:
        return cast(Tensor, fitted(outputs.last_part)) - outputs.logits.logsumexp(-1)

    def _dimension(self, width: int) -> int:
        default = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
        dimension = default if self.dimension is None else self.dimension
        if dimension >= width:
            raise ValueError(
                f"dimension is {dimension} but there are {width} features; expected fewer, so that a "
                "residual remains: lower dimension"
            )
        return dimension


def _origin_and_moments(features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """o (H,) and Σ_i (f_i − o)(f_i − o)ᵀ (H, H), float64, of the samples of all processes."""
    width = features.shape[1]
    joint = torch.cat([features, logits], 1)
    one_class = torch.zeros(len(joint), dtype=torch.long)
    statistics = ClassStatistics.of(joint, one_class, 1, "tied").across_processes()
    scatter, mean = statistics.scatter, statistics.means[0]
    inverse = torch.linalg.pinv(scatter[:width, :width], rtol=_ROUNDING, hermitian=True)
    weight = (inverse @ scatter[:width, width:]).T
    bias = mean[width:] - weight @ mean[:width]
    origin = -torch.linalg.pinv(weight) @ bias
    away = mean[:width] - origin
    return origin, scatter[:width, :width] + statistics.counts.sum() * away.outer(away)
