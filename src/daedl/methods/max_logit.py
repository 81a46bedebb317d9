"""The largest logit."""

from dataclasses import dataclass

from torch import nn

from daedl.methods.post_hoc import PostHoc
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class MaxLogit(PostHoc):
    """Epistemic: −max_c z_c; p = softmax(z)."""

    name = "max-logit"
    paper = (
        "Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022"
    )
    caveats = (
        "The cross-entropy does not fix the level of the logits. Published for many classes, where "
        "similar ones share the probability of an image that is well known."
    )

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z), and minus the largest logit."""
        del fitted
        logits = outputs.logits
        return Prediction.from_probs(logits.softmax(-1), -logits.amax(-1))
