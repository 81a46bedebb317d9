"""A bound on the rejection rate of several scores together, by split conformal prediction."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from daedl.selective.target import DENSITY, GuideLine, Target, require_rate

# A rank by density counts as this many times the rank by another score (chosen): the density rejects inputs
# far from all training data, whose densities are below those of nearly all images.
DENSITY_FACTOR = 10


@dataclass(frozen=True)
class MaxRejectionRate(Target):
    """At most `rate` of in-distribution images are rejected, on average over calibration sets.

    Several scores reject together. The rank of an image by a score is the number of images that are at least
    as uncertain, times ten for the density, and its rank by all scores the smallest of these. Images with the
    smallest ranks are rejected, which is one limit per score (see `_positions`). Correlated scores mostly
    reject the same images, so the bound is nearly attained. With one score the limit is that of split
    conformal prediction, the ⌊rate (n + 1)⌋-th largest of n calibration scores.
    """

    kind = "reject"
    accepts_ties = True  # a limit is the score of a calibration sample, which is accepted

    rate: float = 0.05

    def __post_init__(self) -> None:
        require_rate(self.rate, "rate")

    @property
    def guarantee(self) -> str:
        return f"at most {self.rate:.2%} of new inputs like these are rejected, on average"

    def limits(self, scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> dict[str, float]:
        del seed
        positions = _positions(scores, self._rejections(len(wrong)))
        if not any(positions.values()):
            raise ValueError(self._few_message(len(wrong), min(2, len(scores))))
        return {
            name: float(scores[name].sort(descending=True).values[position - 1])
            for name, position in positions.items()
            if position
        }

    def limits_density(self, samples: int) -> bool:
        return self._rejections(samples) >= DENSITY_FACTOR

    def _rejections(self, samples: int) -> int:
        """⌊rate (n + 1)⌋."""
        # 1e-9 absorbs the rounding of products that are whole numbers in exact arithmetic.
        return math.floor(self.rate * (samples + 1) + 1e-9)

    def break_ties(
        self, limits: Mapping[str, float], scores: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """Add a limit on the density where several images share the value of a limit.

        A density score clipped at 0 removes all evidence, so that images tie although their densities
        differ, and the limit would accept every OOD image too. The density then decides between them: ranks
        and limits are those of the score in lexicographic order with the density, so the guarantee holds.
        """
        tied = [name for name in limits if name != DENSITY and _ties(scores[name], limits[name])]
        if not tied:
            return dict(limits)
        used = {name: scores[name] for name in limits}
        if DENSITY in scores:
            used |= {name: _lexicographic(scores[name], scores[DENSITY]) for name in tied}
        positions = _positions(used, self._rejections(len(used[tied[0]])))
        refined: dict[str, float] = {}
        for name, position in positions.items():
            if not position:
                continue
            last = used[name].argsort(descending=True)[position - 1]
            limit = scores[name][last]
            if name in tied and _ties(scores[name], float(limit)):
                cut = _cut(scores, name, limit, last)
                if cut is not None:
                    refined[DENSITY] = min(cut, refined.get(DENSITY, cut))
                elif limit == scores[name].max():
                    plain = {each: scores[each] for each in limits}
                    raise ValueError(self._tie_message(plain, name, float(limit)))
            refined[name] = min(float(limit), refined.get(name, math.inf))
        return refined

    def _few_message(self, samples: int, needed: int) -> str:
        message = (
            f"{samples} calibration samples are too few for a rejection rate of {self.rate:.2%}; expected at "
            f"least {math.ceil(needed / self.rate - 1e-9) - 1}: use more samples"
        )
        if (smallest := _rate(needed, samples)) < 1:
            message += f", or allow a rejection rate of {smallest:.4g}, the smallest possible with {samples}"
        return message

    def _tie_message(self, scores: Mapping[str, Tensor], name: str, limit: float) -> str:
        samples, tied = len(scores[name]), int((scores[name] == limit).sum())
        message = (
            f"{tied / samples:.2%} of the calibration samples share the largest {name} score, "
            f"{limit:.4g}, so rejecting at most {self.rate:.2%} would accept images without any evidence; "
            "expected fewer ties: "
        )
        counts = range(1, samples + 1)
        enough = bisect_left(counts, True, key=lambda k: _positions(scores, k)[name] > tied)
        if enough < samples and (smallest := _rate(counts[enough], samples)) < 1:
            message += f"allow a rejection rate of {smallest:.4g}, the smallest possible, or "
        return message + (
            "threshold the other score; with a density, fit it again with leave_one_out=True or "
            "normalizer='half-quantile' (daedl refit)"
        )

    def guide_line(self) -> GuideLine:
        return GuideLine("coverage", 1 - self.rate, f"at most {self.rate:.1%} rejected")


def smallest_rate(samples: int) -> float:
    """The smallest rejection rate that this number of calibration samples allows, for one score."""
    return _rate(1, samples)


def _rate(rejections: int, samples: int) -> float:
    """The smallest rejection rate for this many of n + 1 images, rounded up."""
    return math.ceil(1e4 * rejections / (samples + 1) - 1e-6) / 1e4


def _positions(scores: Mapping[str, Tensor], rejections: int) -> dict[str, int]:
    """K per score: its limit is the K-th largest of the n calibration scores, and 0 for no limit.

    Let N_a(i) be the number of calibration images that are at least as uncertain as i by score a, itself
    included, f_a = 10 for the density and 1 for others, o_a small to break ties between scores, and

        U(i) = min over a of (N_a(i) − 1) f_a + o_a,    K_a = #{N ≥ 0: N f_a + o_a < U_(k)}

    with U_(k) the k-th smallest, k the number of `rejections`.

    The bound: let V be U with numbers counted among n + 1 images, a new one included. V is exchangeable, and
    U ≤ V for calibration images. The new image is rejected if N_a < K_a for any a, that is V < U_(k). Then
    fewer than k others have at most its V, so it is among the k smallest: a probability of k / (n + 1).
    """
    if len(scores) == 1:
        return dict.fromkeys(scores, rejections)
    if not rejections:
        return dict.fromkeys(scores, 0)
    steps = {
        name: len(scores) * (DENSITY_FACTOR if name == DENSITY else 1) for name in scores
    }  # in units of o_a
    ranks = []
    for offset, (name, values) in enumerate(scores.items()):
        below = torch.searchsorted(values.sort().values, values)
        ranks.append((len(values) - below - 1) * steps[name] + offset)
    least = int(torch.stack(ranks).amin(0).sort().values[rejections - 1])
    return {name: max(0, -((offset - least) // steps[name])) for offset, name in enumerate(scores)}


def _ties(values: Tensor, limit: float) -> bool:
    """Whether several images have the value of a limit."""
    return int((values == limit).sum()) > 1


def _lexicographic(values: Tensor, density: Tensor) -> Tensor:
    """Ranks (n,) by value, and by density where values are equal."""
    ranks: Tensor = torch.unique(torch.stack((values, density), 1), dim=0, return_inverse=True)[1]
    return ranks


def _cut(scores: Mapping[str, Tensor], name: str, limit: Tensor, last: Tensor) -> float | None:
    """The density of the image `last` among those tied at `limit`; None if it does not refine the order.

    That requires that no image below the limit exceeds it, and that densities don't tie too.
    """
    if DENSITY not in scores:
        return None
    density, values = scores[DENSITY], scores[name]
    cut = density[last]
    largest = density[values == limit].sort(descending=True).values
    shared = bool(cut == largest[0] == largest[1])
    return None if shared or bool((density[values < limit] > cut).any()) else float(cut)
