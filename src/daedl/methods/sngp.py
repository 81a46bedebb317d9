"""Spectral-normalised neural Gaussian process (SNGP)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import Count, NonNegative, Positive, Whole
from daedl.distributed import sum_across
from daedl.methods.fitted import Fitted
from daedl.methods.latent import LatentMethod
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.spectral import SpectralNorm

# Rows converted to float64 at a time; limits the working memory to 32 MB (chosen).
_ROWS = 4096


class GaussianProcessHead(nn.Module):
    """Random features φ = √(2 / D) cos(W h + b) of the layer-normalised latent h, and logits φᵀ β.

    W (D, latent) ~ N(0, 1 / l²) and b (D,) ~ U(0, 2π) are drawn once and not trained: φ(h)ᵀ φ(h′)
    tends to exp(−‖h − h′‖² / 2 l²) as D grows.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(
        self, latent: int, width: int, length_scale: float, seed: int, num_classes: int
    ) -> None:
        super().__init__()
        # A separate CPU generator: the global random state is unaffected, and all devices draw the same.
        generator = torch.Generator("cpu").manual_seed(seed)
        normal = torch.empty(width, latent, device="cpu").normal_(generator=generator)
        uniform = torch.empty(width, device="cpu").uniform_(generator=generator)
        self.register_buffer("frequencies", normal / length_scale)
        self.register_buffer("phases", 2 * math.pi * uniform)
        self.norm = nn.LayerNorm(latent)
        self.output = nn.Linear(width, num_classes, bias=False)

    def forward(self, outputs: Outputs) -> Outputs:
        """φ (B, D) and logits (B, C); the latent (B, latent) arrives as the logits of `outputs`."""
        angles = F.linear(self.norm(outputs.logits), self.frequencies, self.phases)
        features = math.sqrt(2 / len(self.phases)) * angles.cos()
        return Outputs(features, self.output(features))


class Covariance(Fitted):
    """Σ = (r I + Σ_i φ_i φ_iᵀ)⁻¹ over the training samples, stored as Cholesky factor of Σ⁻¹."""

    factor: Tensor
    inverse: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__(factor=factor)
        # ONNX has no triangular solve, so prediction multiplies by the inverse; derived, so not saved.
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        self.register_buffer("inverse", inverse, persistent=False)

    @classmethod
    def fit(cls, features: Tensor, ridge: float) -> "Covariance":
        """Fit to φ (N, D) of the training samples of all processes, in float64."""
        width = features.shape[1]
        total = torch.zeros(width, width, dtype=torch.float64, device=features.device)
        for rows in torch.split(features, _ROWS):
            block = rows.double()
            total.addmm_(block.T, block)
        precision = sum_across(total)
        precision.diagonal().add_(ridge)
        return cls(torch.linalg.cholesky(precision))

    def forward(self, features: Tensor) -> Tensor:
        """Variances φᵀ Σ φ (B,), float64, for φ (B, D)."""
        half = features.to(self.inverse) @ self.inverse.T
        return half.square().sum(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move to another device but stay float64; stay on the current one if it has no float64."""
        try:
            device = fn(self.factor).device
        except TypeError:  # Apple's MPS has no float64
            return self
        return super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class SNGP(LatentMethod):
    """p = softmax(z / √(1 + λ v)), z = φᵀ β, v = φᵀ (r I + Σ_i φ_i φ_iᵀ)⁻¹ φ, trained with −ln softmax(z)_y.

    φ are D random features of a latent, which the last layer outputs instead of logits: a Gaussian
    process with RBF kernel, whose posterior variance v of the logits increases with the distance from the
    training samples i. Epistemic: ln(u / (1 − u)) = ln C − ln Σ_c exp(z_c / √(1 + λ v)), the log odds of
    the published Dempster-Shafer score u = C / (C + Σ_c exp(z_c / √(1 + λ v))); it has the ranking of u
    without ties near 0 and 1.

    Verified in the released code (edward2, uncertainty-baselines), though not in the paper's text: soft
    spectral normalisation with bound 6, LayerNorm on the latent, no bias, the variance and the mean-field
    logits, and weight 1 for every sample in the sum, where the Laplace approximation of a softmax has
    p (1 − p). Differences:
    - The sum is computed after training, in one pass with the final weights, not during the last epoch.
    - The latent comes from a trained layer, not from a fixed random projection.
    - The rows of W are independent ("rff" there), not orthogonal ("orf", its default).
    - Its φ lack the factor √(2 / D), so r = 2 / D here corresponds to r = 1 there.

    Attributes:
        spectral: spectral normalisation of the network without the head; of convolutions as operators, as
            published.
        latent: dimension of the latent; published for the random projection.
        width: D; published.
        length_scale: l of the RBF kernel as it is effective in the released code: after LayerNorm that
            ignores its setting of 2 and draws W with standard deviation 0.05. With l = 2 and
            `latent` = 128 the kernel of any two latents would be about 0, as their norm is √128.
        ridge: r; published, see above.
        mean_field: λ; published as 25 for CIFAR-10 and 12.5 for CIFAR-100. 20 is the largest value in the
            released sweep.
        seed: seed of W and b.
    """

    name = "sngp"
    paper = (
        "Liu et al., Simple and Principled Uncertainty Estimation with Deterministic Deep Learning via "
        "Distance Awareness, NeurIPS 2020"
    )
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {"mean_field": 25.0}}
    published_training = (
        "SGD with Nesterov momentum 0.9 at 0.05 (batch size 128, otherwise proportional), L2 penalty 3e-4, "
        "250 epochs, learning rate times 0.2 after 75, 150 and 200, dropout 0.1 (CIFAR-10)"
    )
    state = Covariance
    extra_cost = (
        "spectral normalisation, 1024 random features of a 128-dimensional latent, and one pass over the "
        "training data"
    )
    caveats = (
        "The latent is normalised, so only its direction affects the variance. λ is not fitted: with few "
        "training samples v is large everywhere, and in-distribution predictions are underconfident."
    )

    spectral: SpectralNorm | None = SpectralNorm(  # noqa: RUF009 (frozen)
        norm="operator", coefficient=6.0, soft=True
    )
    latent: Count = 128
    width: Count = 1024
    length_scale: Positive = 20.0
    ridge: Positive = 2 / 1024
    mean_field: NonNegative = 20.0
    seed: Whole = 0

    def head(self, num_classes: int) -> GaussianProcessHead:
        return GaussianProcessHead(
            self.latent, self.width, self.length_scale, self.seed, num_classes
        )

    @property
    def num_features(self) -> int:
        return self.width

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        return F.cross_entropy(outputs.logits, targets, reduction="none")

    def fit(self, outputs: Outputs, targets: Tensor) -> Covariance:
        return Covariance.fit(outputs.features, self.ridge)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        logits, variances = outputs.logits, self.require_fitted(fitted)(outputs.features)
        scale = (1 + self.mean_field * variances).rsqrt()
        adjusted = logits * scale.to(logits)[:, None]
        odds = math.log(logits.shape[-1]) - adjusted.logsumexp(-1)
        # With a large variance all probabilities can round to the same value: labels come from the logits.
        prediction = Prediction.from_probs(adjusted.softmax(-1), odds)
        return replace(prediction, labels=logits.argmax(-1))
