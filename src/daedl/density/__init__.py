"""The density of features: class-wise Gaussians, and the normaliser that makes it a score."""

from daedl.density.effect import DensityEffect, DensityWarning, density_effect
from daedl.density.gaussian import GaussianDensity
from daedl.density.normalizer import NORMALIZERS, MinMax, Normalizer, SmoothQuantile
from daedl.density.scorer import DensityScorer
from daedl.density.shrinkage import Shrunk
from daedl.density.statistics import ClassStatistics

__all__ = [
    "NORMALIZERS",
    "ClassStatistics",
    "DensityEffect",
    "DensityScorer",
    "DensityWarning",
    "GaussianDensity",
    "MinMax",
    "Normalizer",
    "Shrunk",
    "SmoothQuantile",
    "density_effect",
]
