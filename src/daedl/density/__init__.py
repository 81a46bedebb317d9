"""Feature densities: class-conditional Gaussians, and normalisers that map them to scores."""

from daedl.density.effect import DensityEffect, DensityWarning, density_effect
from daedl.density.fitting import fit_gaussians, refit_gaussians
from daedl.density.gaussian import GaussianDensity
from daedl.density.normalizer import NORMALIZERS, HalfQuantile, MinMax, Normalizer, SmoothQuantile
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
    "HalfQuantile",
    "MinMax",
    "Normalizer",
    "Shrunk",
    "SmoothQuantile",
    "density_effect",
    "fit_gaussians",
    "refit_gaussians",
]
