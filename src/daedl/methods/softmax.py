"""Softmax with its maximum probability (MSP): the ordinary classifier."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from daedl.methods.base import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Softmax(Method):
    """p = softmax(z), trained with the cross-entropy −ln p_y; it has no epistemic score."""

    name = "softmax"
    paper = (
        "Hendrycks and Gimpel, A Baseline for Detecting Misclassified and OOD Examples, ICLR 2017"
    )
    published_training = "none stated beside DAEDL's table; here as every other method"
    caveats = "Confident far away from the training data; nothing tells what it has never seen."

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """−ln softmax(z)_y, (B,)."""
        del epoch
        return F.cross_entropy(outputs.logits, targets, reduction="none")

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z)."""
        del fitted
        return Prediction.from_probs(outputs.logits.softmax(-1))
