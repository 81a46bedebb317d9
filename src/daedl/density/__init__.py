"""Feature densities: class-conditional Gaussians, and normalisers that map them to scores."""

from daedl.density.directions import class_directions
from daedl.density.effect import DensityEffect, DensityWarning, density_effect
from daedl.density.fitting import fit_gaussians, refit_gaussians
from daedl.density.gaussian import GaussianDensity
from daedl.density.normalizer import NORMALIZERS, HalfQuantile, MinMax, Normalizer, SmoothQuantile
from daedl.density.scorer import DensityScorer
from daedl.density.shrinkage import Shrunk
from daedl.density.statistics import ClassStatistics
from daedl.density.stream import DensityStream

__all__ = [
    "NORMALIZERS",
    "ClassStatistics",
    "DensityEffect",
    "DensityScorer",
    "DensityStream",
    "DensityWarning",
    "GaussianDensity",
    "HalfQuantile",
    "MinMax",
    "Normalizer",
    "Shrunk",
    "SmoothQuantile",
    "class_directions",
    "density_effect",
    "fit_gaussians",
    "refit_gaussians",
]
