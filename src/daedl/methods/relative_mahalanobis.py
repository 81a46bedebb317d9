"""Mahalanobis distance to the nearest class, relative to that of all training features."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from daedl.density import GaussianDensity
from daedl.methods.gaussians import GaussianMethod
from daedl.names import strip_prefix
from daedl.outputs import Outputs


class RelativeDistances(nn.Module):
    """Computes min_c M_c − M_0 with Gaussians of the classes and of all training features."""

    def __init__(self, classes: GaussianDensity, background: GaussianDensity) -> None:
        super().__init__()
        self.classes, self.background = classes, background

    def forward(self, features: Tensor) -> Tensor:
        """Relative distances (B,), float64, of features (B, H)."""
        nearest = _published_distances(self.classes, features).amin(-1)
        return nearest - _published_distances(self.background, features)[:, 0]

    def settings(self) -> dict[str, Any]:
        """Settings of both Gaussians."""
        return {"classes": self.classes.settings(), "background": self.background.settings()}

    @classmethod
    def restore(
        cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> "RelativeDistances":
        """Rebuild both Gaussians from their `state_dict()` and `settings()`."""
        return cls(
            **{
                name: GaussianDensity.restore(strip_prefix(tensors, f"{name}."), settings[name])
                for name in settings
            }
        )


@dataclass(frozen=True, kw_only=True)
class RelativeMahalanobis(GaussianMethod):
    """Epistemic: min_c M_c − M_0, where M_0 removes distances that all classes have in common.

        M_c = (f − μ_c)ᵀ Σ⁻¹ (f − μ_c),   M_0 = (f − μ)ᵀ Σ_0⁻¹ (f − μ)

    Σ is the shared covariance of the classes, μ and Σ_0 are the mean and covariance of all training
    features; both covariances are divided by N. p = softmax(z).
    """

    name = "relative-mahalanobis"
    title = "Relative Mahalanobis"
    paper = (
        "Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021 "
        "(arXiv 2106.09022)"
    )
    covariance = "tied"
    state = RelativeDistances
    caveats = (
        "Published for near OOD data. Distances in directions in which the class means do not differ "
        "cancel, however far a sample is from the training data."
    )

    def fit(self, outputs: Outputs, targets: Tensor) -> Any:
        return RelativeDistances(
            super().fit(outputs, targets), super().fit(*_as_one_class(outputs, targets))
        )

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> Any:
        before = cast(RelativeDistances, fitted)
        return RelativeDistances(
            super().refit(before.classes, outputs, targets),
            super().refit(before.background, *_as_one_class(outputs, targets)),
        )

    def score(self, outputs: Outputs, fitted: Any) -> Tensor:
        return cast(Tensor, fitted(outputs.features))


def _as_one_class(outputs: Outputs, targets: Tensor) -> tuple[Outputs, Tensor]:
    """The same features with one logit and class 0."""
    return outputs._replace(logits=outputs.logits[:, :1]), torch.zeros_like(targets)


def _published_distances(density: GaussianDensity, features: Tensor) -> Tensor:
    """Squared distances (B, C) with a covariance divided by N, where `density` divides by N − C."""
    samples, classes = density.counts.sum(), density.counts.shape[0]
    return density.squared_distances(features) * (samples / (samples - classes))
