"""How much the density did to predictions, and what to do when that was too little or too much."""

from dataclasses import dataclass

from torch import Tensor

from daedl.density.scorer import DensityScorer
from daedl.density.shrinkage import Shrunk
from daedl.dirichlet import Dirichlet
from daedl.outputs import Outputs

# A score this close to 0 or 1 counts as "near" it (chosen).
NEAR = 0.05
# Beyond these shares of held-out in-distribution samples the density is called saturated or inert
# (chosen). The first is low because known samples that tie with unknown ones cost AUPR at once.
SATURATED = 0.02
INERT = 0.90
# Fewer wiped-out samples than this may be chance (chosen), unless they are most of all.
FEW = 10
MOST = 0.5


class DensityWarning(UserWarning):
    """The fitted density hardly changes predictions, or wipes out evidence on known data."""


@dataclass(frozen=True)
class DensityEffect:
    """The density's effect on held-out in-distribution samples.

    Attributes:
        near_zero, near_one: shares of density scores within 0.05 of 0 and 1.
        median_score: median density score.
        change_in_log_precision: mean of ln α₀ with the density minus without.
        flips: predictions whose class the density changed, ties at score 0 aside; must be 0.
        samples: how many samples were looked at.
        shrunk: shrinkage, condition number and effective rank of each class's covariance.
    """

    near_zero: float
    near_one: float
    median_score: float
    change_in_log_precision: float
    flips: int
    samples: int
    shrunk: Shrunk

    def advice(self) -> str | None:
        """What is wrong and what to do about it, or None."""
        many = self.near_zero * self.samples >= FEW or self.near_zero > MOST
        if self.near_zero > SATURATED and many:
            return (
                f"the density is saturated: {self.near_zero:.0%} of held-out in-distribution samples "
                f"score below {NEAR}, so their evidence is wiped out. The density knows the training "
                "samples too well: use leave_one_out=True, covariance='tied' or 'diagonal', a larger "
                "shrinkage, more samples, or features of a later block"
            )
        if self.near_one > INERT:
            return (
                f"the density is inert: {self.near_one:.0%} of held-out in-distribution samples score "
                f"above {1 - NEAR}, so it changes nothing. Training outliers stretch the range: look "
                "at the samples of lowest density, or use normalizer='smooth-quantile'"
            )
        return None

    def __str__(self) -> str:
        lines = [
            f"density effect on {self.samples} held-out samples",
            f"  scores near 0 / near 1   {self.near_zero:.1%} / {self.near_one:.1%}, "
            f"median {self.median_score:.3f}",
            f"  change in ln alpha0      {self.change_in_log_precision:+.3f} on average",
            f"  prediction flips         {self.flips}",
            f"  condition number         {_range(self.shrunk.condition, '.1e')}",
            f"  effective rank           {_range(self.shrunk.effective_rank, '.1f')}",
            f"  shrinkage                {_range(self.shrunk.amount, '.2g')}",
        ]
        advice = self.advice()
        return "\n".join([*lines, *([f"  warning: {advice}"] if advice else [])])


def density_effect(outputs: Outputs, scorer: DensityScorer) -> DensityEffect:
    """Compare predictions with and without the density.

    `outputs` are those of held-out in-distribution samples: on the training set itself the scores
    reach 0 and 1 by construction.
    """
    logits = outputs.logits.double()
    _, score = scorer(outputs.features)
    score = score.double()
    with_density = Dirichlet(score[:, None] * logits)
    change = with_density.log_precision - Dirichlet(logits).log_precision
    flipped = (with_density.log_alpha.argmax(-1) != logits.argmax(-1)) & (score != 0)
    return DensityEffect(
        near_zero=float((score <= NEAR).double().mean()),
        near_one=float((score >= 1 - NEAR).double().mean()),
        median_score=float(score.median()),
        change_in_log_precision=float(change.mean()),
        flips=int(flipped.sum()),
        samples=len(score),
        shrunk=scorer.density.shrunk,
    )


def _range(values: Tensor, spec: str) -> str:
    """The smallest and the largest of `values` (K,) for people to read."""
    return f"{float(values.min()):{spec}} to {float(values.max()):{spec}}"
