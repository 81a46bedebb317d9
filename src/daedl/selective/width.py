"""A limit on the width of a regressor's intervals."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from daedl.checks import require_above_zero
from daedl.selective.rejection import MaxRejectionRate, smallest_rate
from daedl.selective.target import DENSITY, On, Target, Thresholds, require_rate

RATE = 0.01  # of in-distribution inputs, rejected as OOD (chosen)


@dataclass(frozen=True)
class MaxWidth(Target):
    """Rejects predictions whose interval of this level is wider than `width`, and OOD inputs.

    The latter are detected by the density, or by the epistemic score of a method without density, which
    rejects at most `rate` of in-distribution inputs.

    Attributes:
        width: largest width, in units of the target; with several targets, in standard deviations of the
            training targets.
        level: coverage of the intervals.
        rate: share of in-distribution inputs that is rejected as OOD; None: 1%, or the smallest
            rate that the number of calibration samples allows.
    """

    kind = "width"
    accepts_ties = True

    width: float
    level: float = 0.9
    rate: float | None = None

    def __post_init__(self) -> None:
        require_above_zero("width", self.width, "the largest width that is still useful")
        require_rate(self.level, "level")
        if self.rate is not None:
            require_rate(self.rate, "rate")

    @property
    def guarantee(self) -> str:
        return (
            f"intervals contain at least {self.level:.1%} of new targets, on average over accepted and "
            f"rejected inputs, and at most {self.rate or RATE:.2%} of inputs like these are rejected as "
            "unlike"
        )

    def limits(self, scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> dict[str, float]:
        unlike = next((name for name in (DENSITY, "epistemic") if name in scores), None)
        if unlike is None:
            return {"width": self.width}
        rule = MaxRejectionRate(self.rate or RATE)
        return {**rule.limits({unlike: scores[unlike]}, wrong, seed), "width": self.width}

    def choose(
        self, scores: Mapping[str, Tensor], wrong: Tensor, on: On | None = None, seed: int = 0
    ) -> Thresholds:
        if on is not None or "width" not in scores:
            raise ValueError(
                f"on is {on!r}, with scores {', '.join(scores)}; expected a regressor, whose intervals have "
                "a width, and on=None: use daedl.MaxRejectionRate for a classifier"
            )
        exact = {name: values.double() for name, values in scores.items()}
        target = replace(self, rate=self.rate or max(RATE, smallest_rate(len(wrong))))
        return target.chosen(target.limits(exact, wrong, seed), exact, wrong)
