"""Mahalanobis distance to the nearest class."""

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from daedl.density import GaussianDensity
from daedl.methods.gaussians import GaussianMethod
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class Mahalanobis(GaussianMethod):
    """Epistemic: min_c (f − μ_c)ᵀ Σ⁻¹ (f − μ_c), Σ the shared covariance.

    μ_c and Σ are computed from the training features. Σ is divided by N − C, in the paper by N; the
    ranking is the same. p = softmax(z).
    """

    name = "mahalanobis"
    title = "Mahalanobis"
    paper = (
        "Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and "
        "Adversarial Attacks, NeurIPS 2018"
    )
    covariance = "tied"
    caveats = (
        "The published input perturbation and logistic regression over layers are omitted because they "
        "are tuned on OOD data; results are lower than in the paper."
    )

    def score(self, outputs: Outputs, fitted: Any) -> Tensor:
        return cast(GaussianDensity, fitted).squared_distances(outputs.features).amin(-1)
