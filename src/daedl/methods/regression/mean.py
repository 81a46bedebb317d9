"""Least squares: the mean only, with the variance of the residuals."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from daedl.distributed import gather_across
from daedl.methods.fitted import Fitted
from daedl.methods.post_hoc import gather_rows
from daedl.methods.regression.base import RegressionMethod
from daedl.nig import NIG
from daedl.outputs import Outputs
from daedl.regression_prediction import RegressionPrediction

# Smallest variance of a standardised target (chosen): that of float32 rounding.
SMALLEST = 1e-12


class Residuals(Fitted):
    """One residual variance (D,) per target."""

    variance: Tensor

    def __init__(self, variance: Tensor) -> None:
        super().__init__(variance=variance)


@dataclass(frozen=True, kw_only=True)
class Mean(RegressionMethod):
    """N(μ(x), v), μ trained by ½ (y − μ)²; v is the mean squared residual.

    v is computed on the training data, and again on held-out data if there are any. The noise is the same for
    every input; there is no epistemic variance.
    """

    name = "mean"
    title = "Mean only"
    paper = "least squares"
    extra_cost = "one pass over the training data"
    caveats = "The same interval for every input, also far from the training data."
    state = Residuals

    @property
    def rows(self) -> int:
        return 1

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """½ (y − μ)², mean over targets."""
        return 0.5 * (targets - outputs.logits[:, 0]).square().mean(-1)

    def nig(self, outputs: Outputs) -> NIG:
        mean = outputs.logits[:, 0]
        return NIG.normal(mean, torch.ones_like(mean))

    def fit(self, outputs: Outputs, targets: Tensor) -> Residuals:
        """Mean squared residuals."""
        mean, targets = gather_rows(outputs.logits[:, 0]), gather_across(targets)
        return Residuals((targets - mean).square().mean(0).clamp_min(SMALLEST))

    def fit_held_out(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        return self.fit(outputs, targets.to(outputs.logits)).to(outputs.logits.device)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> RegressionPrediction:
        residuals = cast(Residuals, self.require_fitted(fitted))
        mean = outputs.logits[:, 0]
        variance = residuals.variance.to(mean).expand_as(mean)
        return RegressionPrediction.of(NIG.normal(mean, variance), has_epistemic=False)
