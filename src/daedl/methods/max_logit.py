"""Maximum logit score."""

from dataclasses import dataclass

from torch import Tensor, nn

from daedl.methods.post_hoc import PostHoc
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class MaxLogit(PostHoc):
    """Epistemic: −max_c z_c; p = softmax(z)."""

    name = "max-logit"
    title = "Max logit"
    paper = (
        "Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"
    )
    caveats = (
        "The cross-entropy is invariant to adding a constant to all logits. Published for many "
        "classes, where similar classes share the probability of an in-distribution image."
    )

    def score(self, outputs: Outputs, fitted: nn.Module | None) -> Tensor:
        return -outputs.logits.amax(-1)
