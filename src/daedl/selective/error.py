"""A bound on the error rate of accepted images, by Clopper-Pearson intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from daedl.selective.target import GuideLine, Target, accepts, require_rate

# Coverages at which the error rate is tested, fixed in advance (chosen: finer towards full coverage, where
# most classifiers end).
COVERAGES = (
    *(1.0, 0.995, 0.99, 0.98, 0.97, 0.96, 0.95, 0.925, 0.9, 0.875),
    *(0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
)


@dataclass(frozen=True)
class MaxErrorRate(Target):
    """At most `rate` of accepted in-distribution images are wrong, with probability 1 − `delta`."""

    kind = "error"
    accepts_ties = False  # a limit lies just below the score of a calibration sample

    rate: float
    delta: float = 0.05

    def __post_init__(self) -> None:
        require_rate(self.rate, "rate")
        require_rate(self.delta, "delta")

    @property
    def guarantee(self) -> str:
        return (
            f"at most {self.rate:.2%} of accepted new inputs like these are wrong, with probability "
            f"{1 - self.delta:.4g}"
        )

    def limits(self, scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> dict[str, float]:
        candidates = _candidates(scores, wrong, seed)
        bounds = [
            clopper_pearson(each.errors, each.accepted, self.delta / len(COVERAGES))
            for each in candidates
        ]
        for candidate, bound in zip(candidates, bounds, strict=True):
            if bound <= self.rate:
                return candidate.limits
        raise ValueError(self._message(min(bounds, default=1.0), len(wrong), len(scores)))

    def _message(self, lowest: float, samples: int, scores: int) -> str:
        message = (
            f"no threshold keeps the error rate at or below {self.rate:.2%} with probability "
            f"{1 - self.delta:.4g}: the lowest upper bound is {lowest:.2%}; expected a bound at or below the "
            "rate: "
        )
        if lowest < 1:
            nearest = math.ceil(1e4 * lowest) / 1e4
            message += f"allow an error rate of {nearest:.4g}, the smallest possible, or "
        # Without errors the bound is 1 − (δ / m)^(1 / n). The image at the limit does not count, and with
        # two scores half of the images don't.
        needed = math.log(self.delta / len(COVERAGES)) / math.log1p(-self.rate)
        number = scores * (math.ceil(needed) + 1)
        return message + (
            f"use more than {samples} calibration samples, at least {number} even if all are right"
        )

    def guide_line(self) -> GuideLine:
        return GuideLine("error", self.rate, f"at most {self.rate:.1%} wrong")


def clopper_pearson(errors: int, samples: int, delta: float) -> float:
    """Upper bound at level 1 − δ on the error rate, given the errors among independent samples."""
    from scipy.special import betaincinv  # noqa: PLC0415 (slow to import, needed here only)

    return 1.0 if errors >= samples else float(betaincinv(errors + 1, samples - errors, 1 - delta))


class Candidate(NamedTuple):
    """Limits, and the images and errors that they accept among images independent of the limits."""

    limits: dict[str, float]
    accepted: int
    errors: int


def _candidates(scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> Sequence[Candidate]:
    """One candidate per coverage, the largest first.

    With one score all images set the limits and are counted, as those below a limit are independent of
    it; with two scores one random half sets the limits and the other is counted.
    """
    setting = counted = torch.arange(len(wrong))
    if len(scores) > 1:
        order = torch.randperm(len(wrong), generator=torch.Generator().manual_seed(seed))
        setting, counted = order[: len(order) // 2], order[len(order) // 2 :]
    ordered = {name: values[setting].sort().values for name, values in scores.items()}
    held_out = {name: values[counted] for name, values in scores.items()}
    candidates = []
    for rank in _ranks(len(setting)):
        # The next smaller number, so that tied scores at the limit are rejected, as without evidence.
        limits = {
            name: math.nextafter(float(values[rank - 1]), -math.inf)
            for name, values in ordered.items()
        }
        accepted = accepts(limits, held_out)
        errors = int(wrong[counted][accepted].sum())
        candidates.append(Candidate(limits, int(accepted.sum()), errors))
    return candidates


def _ranks(samples: int) -> list[int]:
    """The distinct ranks of `COVERAGES` among sorted samples, the largest first."""
    ranks = (math.floor(coverage * samples) for coverage in COVERAGES)
    return [rank for rank in dict.fromkeys(ranks) if rank > 1]
