"""Mahalanobis distance of normalised features."""

from dataclasses import dataclass

from daedl.methods.mahalanobis import Mahalanobis


@dataclass(frozen=True, kw_only=True)
class MahalanobisPlus(Mahalanobis):
    """Epistemic: min_c (g − μ_c)ᵀ Σ⁻¹ (g − μ_c), g = f / ‖f‖, Σ the shared covariance of g.

    The norm of f varies with the class and the contrast of an image, which the Gaussians of
    `mahalanobis` do not model. p = softmax(z).
    """

    name = "mahalanobis++"
    title = "Mahalanobis++"
    paper = "Müller and Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025"
    caveats = "The norm of the features, which may itself separate OOD data, is not used."

    normalize_features: bool = True
