"""Monte Carlo dropout for regression."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from daedl.methods.dropout import DropoutPasses
from daedl.methods.regression.gaussian import GaussianNLL
from daedl.nig import NIG
from daedl.outputs import Outputs
from daedl.regression_prediction import RegressionPrediction


@dataclass(frozen=True, kw_only=True)
class GaussianDropout(DropoutPasses, GaussianNLL):
    """K passes with active dropout: N(μ̄, mean σ_k² + Var μ_k); trained as Gaussian NLL with dropout.

    The aleatoric variance is the mean of the passes' variances, the epistemic one the variance of their means
    (Kendall and Gal, 2017).
    """

    name = "gaussian-dropout"
    title = "Dropout"
    paper = "Gal and Ghahramani, Dropout as a Bayesian Approximation, ICML 2016"
    published_training = "least squares with dropout; rate and precision by validation"
    caveats = (
        "Needs many passes, and the epistemic variance depends on the rate. Masks depend on the position in "
        "the batch, so predictions vary slightly with the composition of the batch."
    )

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> RegressionPrediction:
        passes = [outputs._replace(logits=each) for each in outputs.logits.unbind(1)]
        return mixture([self.parameters(each) for each in passes])


def mixture(normals: list[tuple[Tensor, Tensor]]) -> RegressionPrediction:
    """The normal distribution with the moments of a mixture of normals with these means and log variances."""
    means = torch.stack([mean for mean, _ in normals])
    # Not mean(): it would name a tensor of an exported graph as the output "mean".
    aleatoric = torch.stack([log_variance.exp() for _, log_variance in normals]).sum(0) / len(
        normals
    )
    # Equal means, as of a linear function of zeros, have no variance; its logarithm must be finite.
    tiny = torch.finfo(means.dtype).tiny
    epistemic = means.var(0, unbiased=False).clamp_min(tiny)
    return RegressionPrediction.of(NIG.normal(means.sum(0) / len(normals), aleatoric, epistemic))
