"""Density aware evidential deep learning."""

from dataclasses import dataclass, fields

from daedl.methods.density_aware import DensityAware
from daedl.methods.edl_plus import EDLPlus
from daedl.spectral import SpectralNorm


@dataclass(frozen=True, kw_only=True)
class DAEDL(DensityAware, EDLPlus):
    """Trained as EDL+ with spectral normalisation; predicts α = exp(s(f) · z).

    s in [0, 1] is the normalised log density of the features under class-conditional Gaussians fitted
    to the training data. Far from the training data s = 0, so α = 1 and the prediction is uniform. The
    expected probabilities are a softmax with temperature 1 / s. The paper's ablation: `spectral=None`
    omits spectral normalisation, method "edl+" omits the density.

    Attributes:
        covariance: "full" as in the paper, "tied", "diagonal", "low-rank", or "auto", which selects one
            by the leave-one-out density of the training samples; see `daedl.density.fit_gaussians`.
        shrinkage: see `daedl.density.GaussianDensity.fit`.
        normalizer: "minmax" as in the paper; "smooth-quantile", robust to training outliers; or
            "half-quantile", which also changes in-distribution probabilities less.
        leave_one_out: compute the normaliser's range from leave-one-out densities of the training
            samples. The paper uses in-sample densities; with few samples and many features, most new
            in-distribution samples then fall below the range.
        rank: directions per class of a low-rank covariance.
        normalize_features: divide features by their L2 norms first (Müller and Hein, Mahalanobis++,
            ICML 2025).
    """

    name = "daedl"
    extra_cost = "spectral normalisation; one pass over the training data for the density"
    caveats = (
        "A single training outlier can make the density inert (`fit` warns). In-distribution "
        "probabilities are underconfident where the density score is far below 1 (see "
        "`leave_one_out`)."
    )

    spectral: SpectralNorm | None = SpectralNorm()  # noqa: RUF009 (frozen)

    def training_method(self) -> EDLPlus:
        """EDL+ with the same settings: the density is fitted after training."""
        return EDLPlus(**{each.name: getattr(self, each.name) for each in fields(EDLPlus)})
