"""What DAEDL does after training, whatever the training was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from daedl.checks import NotFittedError
from daedl.density import DensityScorer
from daedl.density import normalizer as normalizers
from daedl.density.shrinkage import Shrinkage, require_shrinkage
from daedl.density.statistics import Structure, require_structure
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class DensityAware:
    """Predicts α = exp(s(f) · z), s the normalised log density of the features.

    A part of methods that stands before what they are trained as, and not a method itself: it has none of
    a method's other settings, so that theirs keep their defaults.

    Attributes:
        covariance: "full" as in the paper, "tied" or "diagonal".
        shrinkage: see `daedl.density.GaussianDensity.fit`.
        normalizer: "minmax" as in the paper, or "smooth-quantile" against training outliers.
        leave_one_out: take the normaliser's range from densities of training samples that were left
            out of their own fit. The paper does not, and with few samples for many features most new
            samples of known classes then fall below the range.
    """

    name: ClassVar[str]

    covariance: Structure = "full"
    shrinkage: Shrinkage = "auto"
    normalizer: str = "minmax"
    leave_one_out: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        # Refused here rather than after training.
        require_structure(self.covariance)
        require_shrinkage(self.shrinkage)
        normalizers.build(self.normalizer)

    def fit(self, outputs: Outputs, targets: Tensor) -> DensityScorer:
        """Fit the density and its range to the training features."""
        return DensityScorer.fit(
            outputs.features,
            targets,
            outputs.logits.shape[-1],
            self.covariance,
            self.shrinkage,
            self.normalizer,
            self.leave_one_out,
        )

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> DensityScorer:
        """Merge more training features into the density, and widen its range."""
        scorer = cast(DensityScorer, fitted)
        return scorer.merged(outputs.features, targets, self.shrinkage, self.leave_one_out)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The Dirichlet with α = exp(s z), density and logits from the same pass."""
        if fitted is None:
            raise NotFittedError(
                f"{self.name} has no fitted density yet; expected one before prediction: call "
                "daedl.fit(model, ...) to train, or model.fit_post_hoc(train_loader) for a network "
                "that is trained already"
            )
        log_density, score = fitted(outputs.features)
        score = score.to(outputs.logits.dtype)
        # At s = 0 all classes tie, so the class is taken from the logits.
        return Prediction.from_dirichlet(
            score[:, None] * outputs.logits,
            labels=outputs.logits.argmax(-1),
            density_score=score,
            log_density=log_density,
        )

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> DensityScorer:
        """The density and its range from a model file."""
        return DensityScorer.restore(tensors, settings)
