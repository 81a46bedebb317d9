"""Density-aware prediction, shared by `DAEDL` and `Retrofit`."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from daedl.checks import NotFittedError
from daedl.density import NORMALIZERS, DensityScorer
from daedl.density.fitting import RANK, Covariance, require_density_settings
from daedl.density.shrinkage import Shrinkage
from daedl.names import look_up
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class DensityAware:
    """Predicts α = exp(s(f) · z), s the normalised log density of the features.

    A mixin, listed before the method that defines the training. It is not a `Method` itself, so that
    the defaults of that method's settings hold.

    Attributes:
        covariance: "full" as in the paper, "tied", "diagonal", "low-rank", "block", or "auto", which
            selects one by the leave-one-out density of the training samples; see
            `daedl.density.fit_gaussians`.
        shrinkage: see `daedl.density.GaussianDensity.fit`.
        normalizer: "minmax" as in the paper; "smooth-quantile", robust to training outliers; or
            "half-quantile", which also changes in-distribution probabilities less.
        leave_one_out: compute the normaliser's range from leave-one-out densities of the training
            samples. The paper uses in-sample densities; with few samples and many features, most new
            in-distribution samples then fall below the range.
        rank: directions per class of a low-rank covariance.
        normalize_features: divide features, or each part of features of several blocks, by their L2
            norms first (Müller and Hein, Mahalanobis++, ICML 2025).
    """

    name: ClassVar[str]
    since: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"rank": RANK, "normalize_features": False}
    )

    covariance: Covariance = "full"
    shrinkage: Shrinkage = "auto"
    normalizer: str = "minmax"
    leave_one_out: bool = False
    rank: int = RANK
    normalize_features: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        # Invalid values are rejected here rather than after training.
        require_density_settings(self.covariance, self.shrinkage, self.rank)
        look_up(NORMALIZERS, self.normalizer, "normalizer")

    def fit(self, outputs: Outputs, targets: Tensor) -> DensityScorer:
        """Fit the density and the normaliser to the training features."""
        return DensityScorer.fit(
            outputs.features,
            targets,
            outputs.logits.shape[-1],
            self.covariance,
            self.shrinkage,
            self.normalizer,
            self.leave_one_out,
            self.rank,
            self.normalize_features,
            outputs.parts,
        )

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> DensityScorer:
        """Merge more training features into the density, and update the normaliser."""
        scorer = cast(DensityScorer, fitted)
        return scorer.merged(outputs.features, targets, self.shrinkage, self.leave_one_out)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Dirichlet with α = exp(s z); density and logits come from the same forward pass."""
        if fitted is None:
            raise NotFittedError(
                f"{self.name} has no fitted density; expected one before prediction: call "
                "daedl.fit(model, ...) to train, or model.fit_post_hoc(train_loader) if the network "
                "is already trained"
            )
        log_density, score = fitted(outputs.features)
        score = score.to(outputs.logits.dtype)
        # At s = 0 all α are equal, so labels are computed from the logits.
        return Prediction.from_dirichlet(
            score[:, None] * outputs.logits,
            labels=outputs.logits.argmax(-1),
            density_score=score,
            log_density=log_density,
        )

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> DensityScorer:
        """Rebuild the density and the normaliser from a model file."""
        return DensityScorer.restore(tensors, settings)
