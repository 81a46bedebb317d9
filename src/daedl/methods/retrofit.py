"""DAEDL's density on a network that was trained without it."""

from dataclasses import dataclass

from daedl.methods.density_aware import DensityAware
from daedl.methods.post_hoc import PostHoc


@dataclass(frozen=True, kw_only=True)
class Retrofit(DensityAware, PostHoc):
    """Trained as softmax; predicts α = exp(s(f) · z) as DAEDL does.

    What a classifier in production can have without training again (`daedl.wrap`): the density of its
    features takes evidence away from what is unlike the training data. The cross-entropy doesn't fix the
    level of the logits, so that α₀ is no count of evidence; the order of images is what it is good for.

    Attributes:
        covariance: "full" as in the paper, "tied" or "diagonal".
        shrinkage: see `daedl.density.GaussianDensity.fit`.
        normalizer: "minmax" as in the paper, or "smooth-quantile" against training outliers.
        leave_one_out: take the normaliser's range from densities of training samples that were left
            out of their own fit.
    """

    name = "retrofit"
    paper = (
        "Yoon and Kim, Uncertainty Estimation by Density Aware Evidential Deep Learning, ICML 2024 (its "
        "density alone)"
    )
    extra_cost = "one pass over the training data"
    caveats = (
        "Without spectral normalisation unknown inputs may be mapped to where training features lie; "
        "probabilities of known images become less confident than the network's own."
    )
