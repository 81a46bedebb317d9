"""Spectral normalisation, and the Lipschitz bound of the network that it was applied to."""

from daedl.spectral.lipschitz import LayerBound, LipschitzBound, lipschitz_bound
from daedl.spectral.normalize import SpectralNorm, bake, is_normalized, spectral_normalize

__all__ = [
    "LayerBound",
    "LipschitzBound",
    "SpectralNorm",
    "bake",
    "is_normalized",
    "lipschitz_bound",
    "spectral_normalize",
]
