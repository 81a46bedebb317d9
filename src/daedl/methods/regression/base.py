"""`RegressionMethod`: the contract of methods that predict numbers."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from daedl.methods.latent import HeadedMethod
from daedl.nig import NIG
from daedl.outputs import Outputs
from daedl.regression_prediction import RegressionPrediction


class Rows(nn.Module):
    """Arranges the outputs of the last layer as K rows of D targets."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, outputs: Outputs) -> Outputs:
        """Logits (B, K D) become (B, K, D)."""
        logits = outputs.logits
        shape = (logits.shape[0], self.rows, logits.shape[1] // self.rows)
        return outputs._replace(logits=logits.view(shape))


@dataclass(frozen=True, kw_only=True)
class RegressionMethod(HeadedMethod):
    """A method for D targets: `logits` (B, K, D) with K `rows`, targets (B, D), both standardised.

    A network with D outputs gets a last layer with K D outputs. The hooks are those of `BaseMethod`. A method
    with one pass defines `nig`, from which loss and prediction follow.

    Class attributes:
        has_epistemic: whether `nig` has an epistemic variance.
    """

    has_epistemic: ClassVar[bool] = False

    @property
    @abstractmethod
    def rows(self) -> int:
        """Numbers per target that the network predicts."""

    @abstractmethod
    def nig(self, outputs: Outputs) -> NIG:
        """Distributions (B, D) that the network predicts."""

    def last_width(self, num_classes: int) -> int:
        return self.rows * num_classes

    def head(self, num_classes: int) -> nn.Module:
        return Rows(self.rows)

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Mean over targets of −ln p(y)."""
        return -self.nig(outputs).log_prob(targets).mean(-1)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> RegressionPrediction:
        return RegressionPrediction.of(self.nig(outputs), self.has_epistemic)
