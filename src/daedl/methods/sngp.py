"""Spectral-normalised neural Gaussian process."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import NotFittedError, require_above_zero, require_whole
from daedl.distributed import sum_across
from daedl.methods.latent import LatentMethod
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.spectral import SpectralNorm

# Training samples turned to float64 at a time; bounds the working memory to 32 MB (chosen).
_ROWS = 4096


class GaussianProcessHead(nn.Module):
    """Latent to LayerNorm h to random features φ = √(2 / D) cos(W h + b) to logits φᵀ β.

    W (D, latent) ~ N(0, 1 / l²) and b (D,) ~ U(0, 2π) are drawn once and not trained: φ(h)ᵀ φ(h′)
    tends to exp(−‖h − h′‖² / 2 l²) as D grows.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(
        self, latent: int, width: int, length_scale: float, seed: int, num_classes: int
    ) -> None:
        super().__init__()
        # A generator of its own: the global one gives what it gave without this head. It is the CPU's.
        generator = torch.Generator("cpu").manual_seed(seed)
        normal = torch.randn(width, latent, generator=generator, device="cpu")
        uniform = torch.rand(width, generator=generator, device="cpu")
        self.register_buffer("frequencies", normal / length_scale)
        self.register_buffer("phases", 2 * math.pi * uniform)
        self.norm = nn.LayerNorm(latent)
        self.output = nn.Linear(width, num_classes, bias=False)

    def forward(self, outputs: Outputs) -> Outputs:
        """φ (B, D) and logits (B, C), of Outputs whose logits are the latent (B, latent)."""
        angles = F.linear(self.norm(outputs.logits), self.frequencies, self.phases)
        features = math.sqrt(2 / len(self.phases)) * angles.cos()
        return Outputs(features, self.output(features))


class Covariance(nn.Module):
    """Σ = (r I + Σ_i φ_i φ_iᵀ)⁻¹ over the training samples, as the Cholesky factor of its inverse."""

    factor: Tensor
    inverse: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor)
        # Multiplied by, as ONNX has no triangular solve; derived, so not in the file.
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        self.register_buffer("inverse", inverse, persistent=False)

    @classmethod
    def fit(cls, features: Tensor, ridge: float) -> "Covariance":
        """Fit to φ (N, D) of the training samples, of all processes, in float64."""
        width = features.shape[1]
        total = torch.zeros(width, width, dtype=torch.float64, device=features.device)
        for rows in torch.split(features, _ROWS):
            block = rows.double()
            total.addmm_(block.T, block)
        precision = sum_across(total)
        precision.diagonal().add_(ridge)
        return cls(torch.linalg.cholesky(precision))

    def forward(self, features: Tensor) -> Tensor:
        """φᵀ Σ φ (B,), float64, for φ (B, D)."""
        half = features.to(self.inverse) @ self.inverse.T
        return half.square().sum(1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Follow the classifier to another device, but stay in float64; without that, stay here."""
        try:
            device = fn(self.factor).device
        except TypeError:  # Apple's MPS has no float64
            return self
        return super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]

    def settings(self) -> dict[str, Any]:
        """What, beside the tensors of `state_dict()`, rebuilds this: nothing."""
        return {}


@dataclass(frozen=True, kw_only=True)
class SNGP(LatentMethod):
    """p = softmax(z / √(1 + λ v)), z = φᵀ β, v = φᵀ (r I + Σ_i φ_i φ_iᵀ)⁻¹ φ, trained with −ln softmax(z)_y.

    φ are D random features of a latent, which the last layer gives in place of the logits: a Gaussian
    process with an RBF kernel, whose posterior variance v of the logits grows away from the training
    samples i. Epistemic: ln(u / (1 − u)) = ln C − ln Σ_c exp(z_c / √(1 + λ v)), of the published
    Dempster-Shafer score u = C / (C + Σ_c exp(z_c / √(1 + λ v))); it has the order of u without its ties
    near 0 and 1.

    Verified in the released code (edward2, uncertainty-baselines), though not in the paper's text: soft
    spectral normalisation with bound 6, LayerNorm on the latent, no bias, the variance and what becomes
    of the logits, and in the sum a weight of 1 for every sample, where the Laplace approximation of a
    softmax would have p (1 − p). Other than there:
    - The sum is taken after training, in one pass with the weights that predict, not in the last epoch.
    - A trained layer gives the latent, not a fixed random projection.
    - The rows of W are independent ("rff" there), not orthogonal ("orf", its default).
    - Its φ lack the factor √(2 / D), so that r = 2 / D here is its r = 1.

    Attributes:
        spectral: of the network, and not of the head; of convolutions as operators, as published.
        latent: published, as the dimensions of the random projection.
        width: D; published.
        length_scale: l of the RBF kernel, as the released code has it in effect: behind LayerNorm it
            leaves out its setting of 2 and draws W with a standard deviation of 0.05. At 2 any two latents
            of `latent` = 128 dimensions would be strangers, as they lie √128 from the origin.
        ridge: r; published, see above.
        mean_field: λ; published as 25 for CIFAR-10 and 12.5 for CIFAR-100. 20 is the largest that the
            released sweep tries.
        seed: of W and b.
    """

    name = "sngp"
    paper = (
        "Liu et al., Simple and Principled Uncertainty Estimation with Deterministic Deep Learning via "
        "Distance Awareness, NeurIPS 2020"
    )
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {"mean_field": 25.0}}
    published_training = (
        "SGD with Nesterov momentum 0.9 at 0.05 (for batches of 128, in proportion for others), L2 "
        "penalty 3e-4, 250 epochs, rate times 0.2 after 75, 150 and 200, dropout 0.1 (CIFAR-10)"
    )
    extra_cost = (
        "spectral normalisation, 1024 random features of 128 numbers an image, and one pass over the "
        "training data"
    )
    caveats = (
        "The latent is normalised, so that only its direction tells far from near. λ is not fitted: with "
        "few training samples v is large everywhere, and known images are underconfident."
    )

    spectral: SpectralNorm | None = SpectralNorm(  # noqa: RUF009 (frozen)
        norm="operator", coefficient=6.0, soft=True
    )
    latent: int = 128
    width: int = 1024
    length_scale: float = 20.0
    ridge: float = 2 / 1024
    mean_field: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("latent", 1), ("width", 1), ("seed", 0)):
            default = getattr(type(self), name)
            require_whole(name, getattr(self, name), least, f"{default}")
        for name in ("length_scale", "ridge"):
            require_above_zero(name, getattr(self, name), f"{getattr(type(self), name)}")
        if not 0 <= self.mean_field < math.inf:
            raise ValueError(
                f"mean_field is {self.mean_field!r}; expected a finite number from 0: take "
                f"{type(self).mean_field}, 0 for softmax(z) itself"
            )

    def head(self, num_classes: int) -> GaussianProcessHead:
        """Random features and the output layer."""
        return GaussianProcessHead(
            self.latent, self.width, self.length_scale, self.seed, num_classes
        )

    @property
    def num_features(self) -> int:
        """D."""
        return self.width

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """−ln softmax(z)_y, (B,)."""
        del epoch
        return F.cross_entropy(outputs.logits, targets, reduction="none")

    def fit(self, outputs: Outputs, targets: Tensor) -> Covariance:
        """The posterior covariance of the output weights β."""
        del targets
        return Covariance.fit(outputs.features, self.ridge)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z / √(1 + λ v)), and the log odds of the Dempster-Shafer score."""
        if fitted is None:
            raise NotFittedError(
                "sngp has no fitted covariance yet; expected one before prediction: call "
                "daedl.fit(model, ...) to train, or model.fit_post_hoc(train_loader) for a network that "
                "is trained already"
            )
        logits = outputs.logits
        scale = (1 + self.mean_field * fitted(outputs.features)).rsqrt()
        adjusted = logits * scale.to(logits)[:, None]
        odds = math.log(logits.shape[-1]) - adjusted.logsumexp(-1)
        # A large variance can round all classes to a tie, so the class is taken from the logits.
        prediction = Prediction.from_probs(adjusted.softmax(-1), odds)
        return replace(prediction, labels=logits.argmax(-1))

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Covariance:
        """The covariance from a model file."""
        del settings
        return Covariance(tensors["factor"])
