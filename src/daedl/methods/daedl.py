"""Density aware evidential deep learning."""

from dataclasses import dataclass, fields

from daedl.methods.density_aware import DensityAware
from daedl.methods.edl_plus import EDLPlus
from daedl.spectral import SpectralNorm


@dataclass(frozen=True, kw_only=True)
class DAEDL(DensityAware, EDLPlus):
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

    def training_method(self) -> EDLPlus:
        """EDL+ with the same spectral normalisation: the density comes after training."""
        return EDLPlus(**{each.name: getattr(self, each.name) for each in fields(EDLPlus)})
