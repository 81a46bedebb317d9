"""Softmax classifier with the maximum softmax probability (MSP) as score."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from daedl.methods.base import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Softmax(Method):
    """p = softmax(z), trained with the cross-entropy −ln p_y; no epistemic score."""

    name = "softmax"
    title = "Softmax"
    paper = (
        "Hendrycks and Gimpel, A Baseline for Detecting Misclassified and OOD Examples, ICLR 2017"
    )
    published_training = "not stated for the DAEDL tables; here the same as every other method"
    caveats = "Confident far from the training data; no epistemic score."

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        return F.cross_entropy(outputs.logits, targets, reduction="none")

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        return Prediction.from_probs(outputs.logits.softmax(-1))
