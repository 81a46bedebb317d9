"""Temperature scaling: calibrates softmax with one temperature fitted to held-out data."""

from dataclasses import dataclass

from torch import Tensor, nn

from daedl.checks import Number
from daedl.distributed import gather_across
from daedl.methods.fitted import Fitted
from daedl.methods.post_hoc import PostHoc, gather_rows, tempered
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Search interval of T (chosen). If the network makes no error on the held-out data, the loss is minimal at
# T = 0, where every probability is 0 or 1; trained networks typically need T between 0.5 and 5.
LOWEST, HIGHEST = 0.1, 100.0


class Temperature(Fitted):
    """One temperature T for all samples."""

    temperature: float

    def __init__(self, temperature: float) -> None:
        super().__init__(temperature=temperature)
        # Logits must not overflow (chosen).
        Number(1e-6).require("temperature", temperature, "1.0")

    def forward(self, features: Tensor) -> Tensor:
        """T (B,) for features (B, H)."""
        return features.new_full((features.shape[0],), self.temperature)


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(PostHoc):
    """p = softmax(z / T), T = argmin over 0.1 ≤ T ≤ 100 of Σ_i −ln softmax(z_i / T)_{y_i}.

    The sum is over held-out data. Predicted classes do not change; there is no epistemic score.
    """

    name = "temperature"
    title = "Temperature scaling"
    paper = "Guo et al., On Calibration of Modern Neural Networks, ICML 2017"
    state = Temperature
    extra_cost = "one pass over the validation data"
    extra_data = "held-out"
    caveats = (
        "Calibrates on the distribution of the validation data, not under shift or OOD. If the network "
        "makes no error on the validation data, T is at its lower bound 0.1 and probabilities are close "
        "to 0 and 1."
    )
    fit_split = "validation"

    def fit(self, outputs: Outputs, targets: Tensor) -> Temperature:
        return Temperature(best_temperature(gather_rows(outputs.logits), gather_across(targets)))

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        return tempered(outputs.logits, self.require_fitted(fitted)(outputs.features))


def best_temperature(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> float:
    """T that minimises the mean of −ln softmax(z / T)_y, for logits (N, C) and class indices (N,).

    With `smoothing` ε, the target of class y is 1 − ε and ε is spread over all classes, as in Platt (1999): a
    few samples without an error do not show that there are none. The mean is convex in β = 1 / T: its
    derivative, the mean of E_{c ~ softmax(βz)}[z_c] − z_y, has at most one root. If there is none in the
    interval, T is at a bound.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 (slow to import)

    logits = logits.double()
    logits = logits - logits.amax(-1, keepdim=True)
    of_class = logits.gather(-1, targets[:, None]).mean()
    of_truth = (1 - smoothing) * of_class + smoothing * logits.mean()

    def slope(beta: float) -> float:
        return float(((beta * logits).softmax(-1) * logits).sum(-1).mean() - of_truth)

    if slope(1 / LOWEST) <= 0:
        return LOWEST
    if slope(1 / HIGHEST) >= 0:
        return HIGHEST
    return 1 / float(brentq(slope, 1 / HIGHEST, 1 / LOWEST))
