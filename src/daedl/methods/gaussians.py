"""Base class of methods that fit class-conditional Gaussians to softmax features."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from daedl.density import GaussianDensity, fit_gaussians, refit_gaussians
from daedl.density.shrinkage import Shrinkage, require_shrinkage
from daedl.density.statistics import Structure
from daedl.methods.post_hoc import PostHoc
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class GaussianMethod(PostHoc):
    """Abstract base: N(f; μ_c, Σ_c) per class, fitted to the training features.

    Attributes:
        shrinkage: shrinkage of singular covariances; see `daedl.density.GaussianDensity.fit`.
        normalize_features: divide features by their L2 norms first (Müller and Hein, Mahalanobis++,
            ICML 2025).
    """

    extra_cost = "one pass over the training data"
    state: ClassVar[Any] = GaussianDensity
    covariance: ClassVar[Structure]
    since = MappingProxyType({"normalize_features": False})

    shrinkage: Shrinkage = "auto"
    normalize_features: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shrinkage(self.shrinkage)  # rather than after training

    def fit(self, outputs: Outputs, targets: Tensor) -> GaussianDensity:
        num_classes = outputs.logits.shape[-1]
        return fit_gaussians(
            outputs.features,
            targets,
            num_classes,
            self.covariance,
            self.shrinkage,
            normalize_features=self.normalize_features,
            parts=outputs.parts,
        )

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> GaussianDensity:
        density = cast(GaussianDensity, fitted)
        return refit_gaussians(density, outputs.features, targets, self.shrinkage)
