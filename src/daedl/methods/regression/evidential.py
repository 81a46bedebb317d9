"""Deep evidential regression."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from daedl.checks import NonNegative
from daedl.methods.regression.base import RegressionMethod
from daedl.nig import NIG
from daedl.outputs import Outputs

# Smallest ν, α − 1 and β (chosen): variances stay finite in float32.
LEAST = 1e-6


@dataclass(frozen=True, kw_only=True)
class EvidentialRegression(RegressionMethod):
    """NIG(γ, ν, α, β) of the network, trained with −ln p(y) + λ |y − γ| (2ν + α).

    ν, α − 1 and β are softplus of the network's outputs, plus 10⁻⁶; p is a Student-t density.

    Attributes:
        regularization: λ of the penalty of evidence on errors; 0.01 in the paper's code for the UCI sets.
    """

    name = "der"
    title = "Deep evidential regression"
    paper = "Amini et al., Deep Evidential Regression, NeurIPS 2020"
    published_training = "Adam; learning rate and batch size per dataset, regularization 0.01"
    caveats = (
        "ν is determined by the regulariser, not by the number of observations (Meinert et al., AAAI 2023), "
        "and nothing lowers it far from the training data."
    )
    has_epistemic = True

    regularization: NonNegative = 0.01

    @property
    def rows(self) -> int:
        return 4

    def nig(self, outputs: Outputs) -> NIG:
        gamma, *others = outputs.logits.unbind(1)
        nu, alpha, beta = (F.softplus(each) + LEAST for each in others)
        return NIG(gamma, nu.log(), alpha.log1p(), beta.log())

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        nig = self.nig(outputs)
        evidence = 2 * nig.log_nu.exp() + nig.log_alpha.exp()
        penalty = (targets - nig.gamma).abs() * evidence
        return (self.regularization * penalty - nig.log_prob(targets)).mean(-1)
