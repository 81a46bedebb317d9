"""Mahalanobis distance to the nearest class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from daedl.density import GaussianDensity
from daedl.density.scorer import fit_gaussians, refit_gaussians
from daedl.density.shrinkage import Shrinkage, require_shrinkage
from daedl.methods.post_hoc import PostHoc
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Mahalanobis(PostHoc):
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
    extra_cost = "one pass over the training data"
    caveats = (
        "The published input perturbation and the logistic regression over layers are left out: they "
        "are tuned on OOD data, which are not seen here, so expect less than the paper reports."
    )

    shrinkage: Shrinkage = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shrinkage(self.shrinkage)  # here rather than after training

    def fit(self, outputs: Outputs, targets: Tensor) -> GaussianDensity:
        """Fit the means and the shared covariance to the training features."""
        num_classes = outputs.logits.shape[-1]
        return fit_gaussians(outputs.features, targets, num_classes, "tied", self.shrinkage)

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> GaussianDensity:
        """Merge more training features into the Gaussians."""
        density = cast(GaussianDensity, fitted)
        return refit_gaussians(density, outputs.features, targets, self.shrinkage)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z), and the squared distance to the nearest class mean."""
        gaussians = cast(GaussianDensity, self.require_fitted(fitted))
        nearest = gaussians.squared_distances(outputs.features).amin(-1)
        return Prediction.from_probs(outputs.logits.softmax(-1), nearest.to(outputs.logits))

    def restore(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> GaussianDensity:
        """The means and the covariance from a model file."""
        return GaussianDensity.restore(tensors, settings)
