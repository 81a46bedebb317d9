"""Split conformal intervals: residuals of held-out samples relative to their predicted deviation."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

# Residuals that a model file keeps per target (chosen): intervals get at most 0.1% more coverage.
KEPT = 1000
LARGEST = 1e18  # residual: intervals are within the range of float32 (chosen)


@dataclass(frozen=True)
class Conformal:
    """Factors by which predicted deviations give intervals with a guaranteed coverage.

    Attributes:
        samples: n, the number of held-out samples.
        ranks: of the residuals that are kept, ascending, from 1 to n.
        residuals: |y − mean| / deviation of these ranks, one row per target.
    """

    samples: int
    ranks: tuple[int, ...]
    residuals: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip((0, *self.ranks), self.ranks, strict=False))
        sorted_ = all(
            tuple(sorted(row)) == row and 0 <= row[0] <= row[-1] <= LARGEST
            for row in self.residuals
            if row
        )
        lengths = {len(row) for row in self.residuals}
        if not (
            rising and sorted_ and lengths == {len(self.ranks)} and self.ranks[-1] == self.samples
        ):
            raise ValueError(
                f"{len(self.ranks)} ranks of {self.samples} samples with rows of {lengths} residuals; "
                "expected ascending ranks up to the number of samples and as many ascending residuals "
                f"from 0 to {LARGEST:g}: calibrate again"
            )

    @classmethod
    def of(cls, residuals: Tensor) -> Self:
        """Keeps residuals (n, D) of up to `KEPT` ranks; a rank between is rounded up."""
        ordered = residuals.double().sort(0).values
        n = len(ordered)
        ranks = sorted({math.ceil(n * k / KEPT) for k in range(1, KEPT + 1)})
        kept = ordered[torch.tensor(ranks) - 1]
        return cls(n, tuple(ranks), tuple(map(tuple, kept.T.tolist())))

    def factors(self, level: float) -> tuple[float, ...]:
        """One factor q per target: mean ± q · deviation covers a new target with at least this probability.

        q is the residual of rank ⌈(n + 1) level⌉ (Lei et al., 2018). If held-out and new samples are
        exchangeable, its rank among all n + 1 is uniform, so that P(residual ≤ q) ≥ level, exactly for finite
        n; with several targets, for each of them alone.
        """
        rank = math.ceil((self.samples + 1) * level - 1e-9)
        position = next((i for i, kept in enumerate(self.ranks) if kept >= rank), None)
        if position is None:
            raise ValueError(
                f"{self.samples} calibration samples are too few for an interval of level {level}; expected "
                f"at least {math.ceil(level / (1 - level) - 1e-9)}: use more samples, or a lower level"
            )
        return tuple(row[position] for row in self.residuals)
