"""Mahalanobis distance to the nearest class."""

from dataclasses import dataclass
from typing import cast

from torch import nn

from daedl.density import GaussianDensity
from daedl.methods.gaussians import OnGaussians
from daedl.methods.post_hoc import beside
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Mahalanobis(OnGaussians):
    """Epistemic: min_c (f − μ_c)ᵀ Σ⁻¹ (f − μ_c), Σ the covariance that all classes share.

    μ_c and Σ are those of the training features. Σ divides by N − C where the paper divides by N, which
    changes no order. p = softmax(z).

    Attributes:
        shrinkage: of Σ where it is singular; see `daedl.density.GaussianDensity.fit`.
    """

    name = "mahalanobis"
    paper = (
        "Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and "
        "Adversarial Attacks, NeurIPS 2018"
    )
    covariance = "tied"
    caveats = (
        "The published input perturbation and the logistic regression over layers are left out: they "
        "are tuned on OOD data, which are not seen here, so expect less than the paper reports."
    )

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z), and the squared distance to the nearest class mean."""
        gaussians = cast(GaussianDensity, self.require_fitted(fitted))
        nearest = gaussians.squared_distances(outputs.features).amin(-1)
        return Prediction.from_probs(outputs.logits.softmax(-1), beside(nearest, outputs.logits))
