"""DAEDL's density on a softmax network that is already trained."""

from dataclasses import dataclass

from daedl.methods.density_aware import DensityAware
from daedl.methods.post_hoc import PostHoc


@dataclass(frozen=True, kw_only=True)
class Retrofit(DensityAware, PostHoc):
    """Trained as softmax; predicts α = exp(s(f) · z) as DAEDL does.

    Adds density awareness to a classifier in production without retraining: evidence decreases with
    the feature density. The cross-entropy is invariant to adding a constant to all logits, so α₀ is
    not a pseudo-count; use it to rank images. Settings: `DensityAware`.
    """

    name = "retrofit"
    title = "Softmax + density"
    paper = (
        "Yoon and Kim, Uncertainty Estimation by Density Aware Evidential Deep Learning, ICML 2024 "
        "(density only)"
    )
    extra_cost = "one pass over the training data"
    caveats = (
        "Without spectral normalisation, OOD inputs may be mapped close to training features. "
        "In-distribution probabilities become less confident than softmax(z)."
    )
