"""Deep ensembles for regression."""

from dataclasses import dataclass

from torch import nn

from daedl.methods.ensembled import Ensembled, split
from daedl.methods.regression.base import RegressionMethod
from daedl.methods.regression.dropout import mixture
from daedl.methods.regression.gaussian import GaussianNLL
from daedl.nig import NIG
from daedl.outputs import Outputs
from daedl.regression_prediction import RegressionPrediction


@dataclass(frozen=True, kw_only=True)
class GaussianEnsemble(Ensembled, RegressionMethod):
    """M networks with Gaussian NLL: N(μ̄, mean σ_m² + Var μ_m), the moments of their mixture.

    Differences from the paper: members share the batches, and there is no adversarial training.

    Attributes:
        member: method of all members, `GaussianNLL` or `BetaNLL`.
    """

    name = "gaussian-ensemble"
    title = "Deep ensemble"
    paper = (
        "Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep "
        "Ensembles, NeurIPS 2017"
    )
    published_training = "Adam 0.1, batch size 100, 40 epochs, 5 networks"
    extra_cost = "M trainings"
    caveats = "Training, model file and prediction cost M times as much as for one member."

    members_are = GaussianNLL
    member: GaussianNLL = GaussianNLL()  # noqa: RUF009 (frozen)

    @property
    def rows(self) -> int:
        return self.member.rows

    def nig(self, outputs: Outputs) -> NIG:
        return mixture([self.member.parameters(one) for one in split(outputs)]).nig

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> RegressionPrediction:
        return mixture([self.member.parameters(one) for one in split(outputs)])
