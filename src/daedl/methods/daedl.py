"""Density aware evidential deep learning."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from daedl.checks import NotFittedError
from daedl.density import DensityScorer
from daedl.density import normalizer as normalizers
from daedl.density.shrinkage import Shrinkage, require_shrinkage
from daedl.density.statistics import Structure, require_structure
from daedl.methods.edl_plus import EDLPlus
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.spectral import SpectralNorm


@dataclass(frozen=True, kw_only=True)
class DAEDL(EDLPlus):
    """Trained as EDL+ with spectral normalisation; predicts α = exp(s(f) · z).

    s in [0, 1] is the normalised log density of the features under class-wise Gaussians fitted to the
    training data: evidence vanishes away from them, α tends to 1 and the prediction to uniform. The
    prediction is a softmax at temperature 1 / s. `spectral=None` leaves out the normalisation, "edl+"
    the density: the rows of the paper's ablation.

    Attributes:
        covariance: "full" as in the paper, "tied" or "diagonal".
        shrinkage: see `daedl.density.GaussianDensity.fit`.
        normalizer: "minmax" as in the paper, or "smooth-quantile" against training outliers.
        leave_one_out: take the normaliser's range from densities of training samples that were left
            out of their own fit. The paper does not, and with few samples for many features most new
            samples of known classes then fall below the range.
    """

    name = "daedl"
    extra_cost = "spectral normalisation, and one pass over the training data for the density"
    caveats = (
        "One outlier in training can make the density inert (fit warns of it); probabilities of known "
        "images are underconfident where the density score is far below 1 (see `leave_one_out`)."
    )

    spectral: SpectralNorm | None = SpectralNorm()  # noqa: RUF009 (frozen)
    covariance: Structure = "full"
    shrinkage: Shrinkage = "auto"
    normalizer: str = "minmax"
    leave_one_out: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # Refused here rather than after training.
        require_structure(self.covariance)
        require_shrinkage(self.shrinkage)
        normalizers.build(self.normalizer)

    def trained_as(self) -> EDLPlus:
        """EDL+ with the same spectral normalisation: the density comes after training."""
        return EDLPlus(**{each.name: getattr(self, each.name) for each in fields(EDLPlus)})

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

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The Dirichlet with α = exp(s z), density and logits from the same pass."""
        if fitted is None:
            raise NotFittedError(
                "daedl has no fitted density yet; expected one before prediction: call "
                "daedl.fit(model, ...) to train, or model.fit_density(train_loader) for a network "
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
