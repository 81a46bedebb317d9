"""Effect of the density on predictions, with advice if it is too small or too large."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from daedl.density.scorer import DensityScorer
from daedl.density.shrinkage import Shrunk
from daedl.dirichlet import Dirichlet
from daedl.outputs import Outputs

# Scores within this distance of 0 or 1 count as near (chosen).
NEAR = 0.05
# Fractions of held-out in-distribution samples above which the density counts as saturated or inert
# (chosen). The first is low because in-distribution samples that tie with OOD samples reduce AUPR at once.
SATURATED = 0.02
INERT = 0.90
# Fewer samples near 0 or 1 than FEW may be chance (chosen), unless more than MOST of all are near 0.
FEW = 10
MOST = 0.5
# Amounts of shrinkage that are recommended, the first one above the current amounts (chosen).
AMOUNTS = (0.5, 0.9)


class DensityWarning(UserWarning):
    """The fitted density hardly changes predictions, or removes evidence on in-distribution data."""


@dataclass(frozen=True)
class DensityEffect:
    """Effect of the density on held-out in-distribution samples.

    Attributes:
        near_zero, near_one: fractions of density scores within 0.05 of 0 and 1.
        median_score: median density score.
        change_in_log_precision: mean of ln α₀ with the density minus without.
        flips: number of predictions whose class the density changed, except for score 0, where classes
            tie; must be 0.
        samples: number of samples.
        shrunk: shrinkage, condition number and effective rank per covariance.
        covariance: structure of the covariances.
        candidates: mean leave-one-out log density of the training samples per structure, if the structure
            was selected by it; otherwise empty.
        settings: of the method; those that are in use are not recommended.
    """

    near_zero: float
    near_one: float
    median_score: float
    change_in_log_precision: float
    flips: int
    samples: int
    shrunk: Shrunk
    covariance: str
    candidates: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def saturated(self) -> bool:
        """Whether the density removes evidence on in-distribution data."""
        many = self.near_zero * self.samples >= FEW or self.near_zero > MOST
        return self.near_zero > SATURATED and many

    @property
    def inert(self) -> bool:
        """Whether the density hardly changes predictions."""
        return not self.saturated and self.near_one > INERT and self.near_one * self.samples >= FEW

    def remedies(self) -> list[tuple[str, Any]]:
        """Settings, with values other than the current ones, that may solve a problem."""
        if self.inert:
            known: list[tuple[str, Any]] = [
                ("normalizer", "half-quantile"),
                ("normalizer", "smooth-quantile"),
            ]
        elif self.saturated:
            most = float(self.shrunk.amount.max())
            known = [
                *[("shrinkage", each) for each in AMOUNTS if each > most][:1],
                ("leave_one_out", True),
                ("covariance", "auto"),
                ("normalize_features", True),
            ]
        else:
            known = []
        return [(name, value) for name, value in known if self.settings.get(name) != value]

    def advice(self) -> str | None:
        """Description of a problem and its remedies; None if there is none."""
        settings = [f"{name}={value!r}" for name, value in self.remedies()]
        if self.saturated:
            remedies = ", ".join([*settings, "more samples"])
            return (
                f"the density is saturated: {self.near_zero:.0%} of held-out in-distribution samples "
                f"score below {NEAR}, which removes their evidence. The density overfits the training "
                f"samples: use {remedies}, or features of a later block"
            )
        if self.inert:
            return (
                f"the density is inert: {self.near_one:.0%} of held-out in-distribution samples score "
                f"above {1 - NEAR}, so it has no effect. Training outliers widen the range: inspect the "
                f"samples of lowest density, or use {' or '.join(settings)}"
            )
        return None

    def __str__(self) -> str:
        lines = [
            f"density effect on {self.samples} held-out samples",
            f"  scores near 0 / near 1   {self.near_zero:.1%} / {self.near_one:.1%}, "
            f"median {self.median_score:.3f}",
            f"  change in ln alpha0      {self.change_in_log_precision:+.3f} on average",
            f"  prediction flips         {self.flips}",
            f"  covariance               {self._covariance()}",
            f"  condition number         {_range(self.shrunk.condition, '.1e')}",
            f"  effective rank           {_range(self.shrunk.effective_rank, '.1f')}",
            f"  shrinkage                {_range(self.shrunk.amount, '.2g')}",
        ]
        advice = self.advice()
        return "\n".join([*lines, *([f"  warning: {advice}"] if advice else [])])

    def _covariance(self) -> str:
        """The structure, with the figures by which it was selected."""
        ordered = sorted(self.candidates.items(), key=lambda each: -each[1])
        figures = ", ".join(f"{name} {figure:.1f}" for name, figure in ordered)
        return self.covariance + (f" (left-out log densities: {figures})" if figures else "")


def density_effect(
    outputs: Outputs, scorer: DensityScorer, settings: Mapping[str, Any] | None = None
) -> DensityEffect:
    """Compare predictions with and without the density.

    Pass `outputs` of held-out in-distribution samples: on the training set the scores reach 0 and 1 by
    construction. `settings` are those of the method, which are not recommended again.
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
        covariance=scorer.density.structure,
        candidates=scorer.density.candidates,
        settings=dict(settings or {}),
    )


def _range(values: Tensor, spec: str) -> str:
    """Format the minimum and maximum of `values` (K,)."""
    return f"{float(values.min()):{spec}} to {float(values.max()):{spec}}"
