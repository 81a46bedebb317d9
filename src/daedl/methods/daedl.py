"""Density aware evidential deep learning."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from daedl.methods.density_aware import DensityAware
from daedl.methods.edl_plus import EDLPlus
from daedl.spectral import SpectralNorm

# The settings of the paper where they differ from the defaults.
PAPER: Mapping[str, Any] = MappingProxyType(
    {
        "spectral": SpectralNorm(),
        "covariance": "full",
        "normalizer": "minmax",
        "leave_one_out": False,
        "normalize_features": False,
        "temperature": False,
    }
)


@dataclass(frozen=True, kw_only=True)
class DAEDL(DensityAware, EDLPlus):
    """Trained as EDL+ with spectral normalisation; predicts α = exp(s(f) · z).

    s in [0, 1] is the normalised log density of the features under class-conditional Gaussians fitted
    to the training data. Far from the training data s tends to 0, so α tends to 1 and the prediction to
    the uniform one. The expected probabilities are a softmax with temperature T / s. Settings of the
    density: `DensityAware`. The defaults differ from the paper's, which `DAEDL.as_published()` has, because
    these fail with few samples, two or many classes, and photographs (docs/results.md). The paper's
    ablation: `spectral=None` omits spectral normalisation, method "edl+" omits the density.
    """

    name = "daedl"
    extra_cost = "spectral normalisation; one pass over the training data for the density"
    caveats = (
        "With normalizer='minmax', as in the paper, a single training outlier can make the density inert "
        "(`fit` warns), and in-distribution probabilities are underconfident."
    )

    spectral: SpectralNorm | Literal["auto"] | None = "auto"

    @classmethod
    def as_published(cls, **settings: Any) -> "DAEDL":
        """The method as published; `settings` take precedence."""
        return cls(**{**PAPER, **settings})

    def training_method(self) -> EDLPlus:
        """EDL+ with the same settings: the density is fitted after training."""
        return EDLPlus(**{each.name: getattr(self, each.name) for each in fields(EDLPlus)})
