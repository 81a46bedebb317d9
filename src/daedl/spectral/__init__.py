"""Spectral normalisation and Lipschitz bounds of networks."""

from daedl.spectral.lipschitz import LayerBound, LipschitzBound, lipschitz_bound
from daedl.spectral.normalize import (
    DEFAULT,
    SpectralNorm,
    normalization,
    remove_spectral_norm,
    spectral_normalize,
)

__all__ = [
    "DEFAULT",
    "LayerBound",
    "LipschitzBound",
    "SpectralNorm",
    "lipschitz_bound",
    "normalization",
    "remove_spectral_norm",
    "spectral_normalize",
]
