"""Cross-entropy of normalised logits."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from daedl.checks import Positive
from daedl.methods.softmax import Softmax
from daedl.outputs import Outputs

# Added to the norm, as in the published code.
_EPSILON = 1e-7


@dataclass(frozen=True, kw_only=True)
class LogitNorm(Softmax):
    """p = softmax(z), trained with −ln softmax(z / (τ ‖z‖))_y; no epistemic score.

    The loss does not depend on ‖z‖, so training cannot lower it by confidence alone. Predictions use z
    itself, as in the published code: ‖z‖ tends to be smaller for OOD data.

    Attributes:
        tau: τ; published for CIFAR-10.
    """

    name = "logitnorm"
    title = "LogitNorm"
    paper = (
        "Wei et al., Mitigating Neural Network Overconfidence with Logit Normalization, ICML 2022"
    )
    published_training = (
        "SGD 0.1, momentum 0.9, weight decay 5e-4, dropout 0.3, batch size 128, 200 epochs"
    )
    caveats = (
        "τ was selected on noise images. ‖z‖ is not trained, so probabilities are calibrated only after "
        "temperature scaling."
    )

    tau: Positive = 0.04

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        norms = torch.linalg.vector_norm(outputs.logits, dim=-1, keepdim=True) + _EPSILON
        return F.cross_entropy(outputs.logits / (self.tau * norms), targets, reduction="none")
