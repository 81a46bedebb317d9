"""Temperature scaling: one number, fitted to held-out data, that makes probabilities honest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scipy.optimize import brentq
from torch import Tensor, nn

from daedl.distributed import gather_across
from daedl.methods.post_hoc import PostHoc, gather_rows, tempered
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Where T is looked for (chosen). Held-out data without an error have their smallest loss at T = 0, where
# every probability is 0 or 1; networks as they are trained need T of about 0.5 to 5.
LOWEST, HIGHEST = 0.1, 100.0


class Temperature(nn.Module):
    """The same T for every sample."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tensor:
        """T (B,) for features (B, H)."""
        return features.new_full((features.shape[0],), self.temperature)

    def settings(self) -> dict[str, Any]:
        """All of it: there are no tensors."""
        return {"temperature": self.temperature}


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(PostHoc):
    """p = softmax(z / T), T = argmin over 0.1 ≤ T ≤ 100 of Σ_i −ln softmax(z_i / T)_{y_i}.

    The sum is over held-out data. No prediction changes its class, and there is no epistemic score.
    """

    name = "temperature"
    paper = "Guo et al., On Calibration of Modern Neural Networks, ICML 2017"
    extra_cost = "one pass over the validation data"
    extra_data = "held-out"
    caveats = (
        "Calibrates on data like the validation data, not under shift or out of distribution. If the "
        "network makes no error on them, T stops at its lower bound 0.1 and probabilities at 0 and 1."
    )
    fit_split = "validation"

    def fit(self, outputs: Outputs, targets: Tensor) -> Temperature:
        """Find T on the validation logits."""
        return Temperature(best_temperature(gather_rows(outputs.logits), gather_across(targets)))

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z / T)."""
        return tempered(outputs.logits, self.require_fitted(fitted)(outputs.features))

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Temperature:
        """T from a model file."""
        del tensors
        return Temperature(**settings)


def best_temperature(logits: Tensor, targets: Tensor) -> float:
    """T of the smallest mean of −ln softmax(z / T)_y, for logits (N, C) and class indices (N,).

    The mean is convex in β = 1 / T, so that its slope E_{c ~ softmax(βz)}[z_c] − z_y, averaged over the
    samples, has one root; at a bound if it has none between them.
    """
    logits = logits.double()
    logits = logits - logits.amax(-1, keepdim=True)
    of_truth = logits.gather(-1, targets[:, None]).mean()

    def slope(beta: float) -> float:
        return float(((beta * logits).softmax(-1) * logits).sum(-1).mean() - of_truth)

    if slope(1 / LOWEST) <= 0:
        return LOWEST
    if slope(1 / HIGHEST) >= 0:
        return HIGHEST
    return 1 / float(brentq(slope, 1 / HIGHEST, 1 / LOWEST))
