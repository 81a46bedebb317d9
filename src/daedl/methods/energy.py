"""Energy score."""

from dataclasses import dataclass

from torch import Tensor, nn

from daedl.checks import Positive
from daedl.methods.post_hoc import PostHoc
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class Energy(PostHoc):
    """Epistemic: the energy E(x) = −T ln Σ_c exp(z_c / T); p = softmax(z) without temperature.

    Attributes:
        temperature: T; published as 1, larger values performed worse.
    """

    name = "energy"
    title = "Energy"
    paper = "Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020"
    caveats = (
        "The cross-entropy is invariant to adding a constant to all logits, so the energy need not "
        "decrease with the data density. The published fine-tuning on outliers is omitted: no OOD data "
        "are used."
    )

    temperature: Positive = 1.0

    def score(self, outputs: Outputs, fitted: nn.Module | None) -> Tensor:
        return -self.temperature * (outputs.logits / self.temperature).logsumexp(-1)
