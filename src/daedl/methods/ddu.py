"""Deep deterministic uncertainty."""

from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from daedl.methods.gaussians import GaussianMethod
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class DDU(GaussianMethod):
    """Epistemic: −ln p(f), p(f) = Σ_c ω_c N(f; μ_c, Σ_c) fitted to the training features; p = softmax(z).

    The paper trains with soft spectral normalisation: pass
    `spectral=SpectralNorm(norm="operator", coefficient=3, soft=True)`. The default is no spectral
    normalisation, so that the trained network is shared with softmax. The paper's aleatoric score is the
    entropy of softmax(z); here it is 1 − max_c p_c. The published code omits ω_c = N_c / N, and adds to
    the covariances the first of a list of jitters that makes them invertible.
    """

    name = "ddu"
    paper = "Mukhoti et al., Deep Deterministic Uncertainty: A New Simple Baseline, CVPR 2023"
    published_training = (
        "soft spectral normalisation with coefficient 3; SGD at 0.1 with momentum 0.9 and weight decay "
        "5e-4, batch size 128, 350 epochs, learning rate times 0.1 after 150 and 250"
    )
    covariance = "full"
    caveats = (
        "The aleatoric score is meaningful only where the density is high. Without spectral "
        "normalisation, OOD inputs may be mapped close to training features."
    )

    def score(self, outputs: Outputs, fitted: Any) -> Tensor:
        return -cast(Tensor, fitted(outputs.features))

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        prediction = super().predict(outputs, fitted)
        return replace(prediction, log_density=-cast(Tensor, prediction.epistemic))
