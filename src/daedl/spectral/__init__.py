"""Spectral normalisation, and the Lipschitz bound of the network that it was applied to."""

from daedl.spectral.lipschitz import LayerBound, LipschitzBound, lipschitz_bound
from daedl.spectral.normalize import SpectralNorm, bake, normalization, spectral_normalize

__all__ = [
    "LayerBound",
    "LipschitzBound",
    "SpectralNorm",
    "bake",
    "lipschitz_bound",
    "normalization",
    "spectral_normalize",
]
