"""A bound on the rejection rate, by split conformal prediction."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from daedl.selective.target import GuideLine, Target, require_rate


@dataclass(frozen=True)
class MaxRejectionRate(Target):
    """At most `rate` of in-distribution images are rejected, on average over calibration sets."""

    kind = "reject"
    accepts_ties = True  # a limit is the score of a calibration image, which is accepted

    rate: float = 0.05

    def __post_init__(self) -> None:
        require_rate(self.rate, "rate")

    @property
    def guarantee(self) -> str:
        return f"at most {self.rate:.2%} of new images like these are rejected, on average"

    def limits(self, scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> dict[str, float]:
        del seed
        rank = _conformal_rank(len(wrong), self.rate, len(scores))
        limits = {name: float(values.sort().values[rank - 1]) for name, values in scores.items()}
        for name, limit in limits.items():
            _require_no_tie(name, scores[name], limit, self.rate)
        return limits

    def guide_line(self) -> GuideLine:
        return GuideLine("coverage", 1 - self.rate, f"at most {self.rate:.1%} rejected")


def _conformal_rank(samples: int, rate: float, scores: int) -> int:
    """⌈(n + 1)(1 − x)⌉ for n samples, x the rejection rate of each score."""
    each = rate / scores
    # 1e-9 absorbs the rounding of products that are whole numbers in exact arithmetic.
    rank = math.ceil((samples + 1) * (1 - each) - 1e-9)
    if rank > samples:
        raise ValueError(
            f"{samples} calibration images are too few for a rejection rate of {rate:.2%}; expected at "
            f"least {math.ceil(1 / each - 1e-9) - 1}: use more images, or allow a higher rate"
        )
    return rank


def _require_no_tie(name: str, values: Tensor, limit: float, rate: float) -> None:
    """Raise if the limit is a maximum shared by several images: it would accept every OOD image too."""
    largest = float(values.max())
    tied = int((values == largest).sum())
    if limit >= largest and tied > 1:
        raise ValueError(
            f"{tied / len(values):.2%} of the calibration images share the largest {name} score, "
            f"{limit:.4g}, so rejecting at most {rate:.2%} would accept images without any evidence; "
            "expected fewer ties: train with leave_one_out=True, threshold the other score, or allow a "
            "higher rejection rate"
        )
