"""DAEDL's density on a softmax network that is already trained."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from torch import Tensor

from daedl.methods.density_aware import DensityAware
from daedl.methods.logitnorm import LogitNorm
from daedl.methods.post_hoc import PostHoc
from daedl.methods.softmax import Softmax
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class Retrofit(DensityAware, PostHoc):
    """Trained as softmax; predicts α = exp(s(f) · z) as DAEDL does.

    Adds density awareness to a classifier in production without retraining: evidence decreases with
    the feature density. The cross-entropy is invariant to adding a constant to all logits, so α₀ is
    not a pseudo-count; use it to rank images. Further settings: `DensityAware`.

    Attributes:
        training: loss of the network, if it is trained with this method: cross-entropy ("softmax"), or that
            of normalised logits ("logitnorm").
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
    since: ClassVar[Mapping[str, Any]] = MappingProxyType({"training": "softmax"})

    training: Literal["softmax", "logitnorm"] = "softmax"

    def training_method(self) -> Softmax:
        """Softmax or LogitNorm with the same spectral normalisation and reduction."""
        base = LogitNorm if self.training == "logitnorm" else Softmax
        return base(**{each.name: getattr(self, each.name) for each in fields(Softmax)})

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        return self.training_method().loss(outputs, targets, epoch)
