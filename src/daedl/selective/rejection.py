"""A bound on the rejection rate, by split conformal prediction."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from daedl.selective.target import DENSITY, GuideLine, Target, require_rate

# Share of the rejection rate for the limit on the density (chosen). It rejects inputs far from all training
# data, whose densities are below those of nearly all images, so that a small share suffices.
DENSITY_SHARE = 0.1


@dataclass(frozen=True)
class MaxRejectionRate(Target):
    """At most `rate` of in-distribution images are rejected, on average over calibration sets.

    The scores share the rate, so that the sum of their rejections is bounded: a tenth of it for the density,
    if there are enough images to set that limit, and equal parts for the others.
    """

    kind = "reject"
    accepts_ties = True  # a limit is the score of a calibration sample, which is accepted

    rate: float = 0.05

    def __post_init__(self) -> None:
        require_rate(self.rate, "rate")

    @property
    def guarantee(self) -> str:
        return f"at most {self.rate:.2%} of new images like these are rejected, on average"

    def limits(self, scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> dict[str, float]:
        del seed
        return {
            name: float(values.sort().values[self._rank(len(wrong), name, scores) - 1])
            for name, values in scores.items()
        }

    def limits_density(self, samples: int) -> bool:
        return samples >= _least_samples(self.rate * DENSITY_SHARE)

    def _rank(self, samples: int, name: str, names: Collection[str]) -> int:
        return _conformal_rank(samples, self.rate, _share(name, names))

    def break_ties(
        self, limits: Mapping[str, float], scores: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Add a limit on the density where several images share the value of a limit.

        A density score clipped at 0 removes all evidence, so that images tie although their densities
        differ, and the limit would accept every OOD image too. The density then decides between them: the
        limits are those of the score in lexicographic order with the density, so the guarantee holds.
        """
        refined = dict(limits)
        for name, limit in limits.items():
            if name == DENSITY:
                continue
            tied, below = scores[name] == limit, scores[name] < limit
            if int(tied.sum()) == 1:
                continue
            rank = self._rank(len(tied), name, limits) - int(below.sum())
            cut = _cut(scores, tied, below, rank)
            if cut is not None:
                refined[DENSITY] = min(cut, refined.get(DENSITY, cut))
            elif limit == float(scores[name].max()):
                raise ValueError(self._tie_message(name, limit, below, _share(name, limits)))
        return refined

    def _tie_message(self, name: str, limit: float, below: Tensor, share: float) -> str:
        number, samples = int(below.sum()), len(below)
        message = (
            f"{1 - number / samples:.2%} of the calibration samples share the largest {name} score, "
            f"{limit:.4g}, so rejecting at most {self.rate:.2%} would accept images without any evidence; "
            "expected fewer ties: "
        )
        smallest = _smallest_rate(number, samples, share)
        if smallest < 1:
            message += f"allow a rejection rate of {smallest:.4g}, the smallest possible, or "
        return message + (
            "threshold the other score; with a density, fit it again with leave_one_out=True or "
            "normalizer='half-quantile' (daedl refit)"
        )

    def guide_line(self) -> GuideLine:
        return GuideLine("coverage", 1 - self.rate, f"at most {self.rate:.1%} rejected")


def _share(name: str, names: Collection[str]) -> float:
    """Share of the rejection rate for the score `name` among `names`."""
    if DENSITY not in names or len(names) == 1:
        return 1 / len(names)
    return DENSITY_SHARE if name == DENSITY else (1 - DENSITY_SHARE) / (len(names) - 1)


def _least_samples(rate: float) -> int:
    """Smallest number of images that sets a limit for this rejection rate."""
    return math.ceil(1 / rate - 1e-9) - 1


def _conformal_rank(samples: int, rate: float, share: float) -> int:
    """⌈(n + 1)(1 − x)⌉ for n samples, x this share of the rejection rate."""
    each = rate * share
    # 1e-9 absorbs the rounding of products that are whole numbers in exact arithmetic.
    rank = math.ceil((samples + 1) * (1 - each) - 1e-9)
    if rank <= samples:
        return rank
    message = (
        f"{samples} calibration samples are too few for a rejection rate of {rate:.2%}; expected at "
        f"least {_least_samples(each)}: use more samples"
    )
    if (smallest := _smallest_rate(samples, samples, share)) < 1:
        message += (
            f", or allow a rejection rate of {smallest:.4g}, the smallest possible with {samples}"
        )
    raise ValueError(message)


def smallest_rate(samples: int) -> float:
    """The smallest rejection rate that this number of calibration samples allows, for one score."""
    return _smallest_rate(samples, samples, share=1)


def _smallest_rate(rank: int, samples: int, share: float) -> float:
    """The smallest rejection rate for which a limit with this share has at most this rank, rounded up."""
    return math.ceil(1e4 / share * (1 - rank / (samples + 1)) - 1e-6) / 1e4


def _cut(scores: Mapping[str, Tensor], tied: Tensor, below: Tensor, rank: int) -> float | None:
    """The density of this rank among `tied` images (n,); None if it does not refine the score's order.

    That requires that no image `below` the limit (n,) exceeds it, and that densities don't tie too.
    """
    if DENSITY not in scores:
        return None
    density = scores[DENSITY]
    ordered = density[tied].sort().values
    cut = ordered[rank - 1]
    shared = bool(cut == ordered[-1] == ordered[-2])
    return None if shared or bool((density[below] > cut).any()) else float(cut)
