"""Normalisers from log densities to scores between 0 (far from the training data) and 1."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

# Quantile of held-out samples to which the range of `HalfQuantile` is widened (chosen by held-out Brier
# scores, and by detection of mixed and shuffled samples, on scikit-learn's wine, breast cancer and digits).
HELD_OUT_LEVEL = 0.05


@dataclass(frozen=True)
class Normalizer:
    """Monotone map from log densities (B,) to scores (B,) in [0, 1]."""

    low: float
    high: float
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not 0 < self.high - self.low < math.inf:
            raise ValueError(
                f"training log densities range from {self.low} to {self.high}; expected a range of "
                "positive, finite length: check for constant features, or add samples"
            )

    @classmethod
    def fit(cls, log_density: Tensor) -> "Normalizer":
        """Fit the range to the log densities (N,) of training samples."""
        raise NotImplementedError

    def shifted(self, shift: float) -> "Normalizer":
        """Normaliser for log densities that are all larger by `shift`."""
        return replace(self, low=self.low + shift, high=self.high + shift)

    def merged(self, log_density: Tensor, share: float) -> "Normalizer":
        """Merge in log densities (M,) of additional samples, which are a fraction `share` of all."""
        raise NotImplementedError

    def widened(self, log_density: Tensor) -> "Normalizer":
        """Extend the range to log densities (N,) of held-out samples; most normalisers keep it."""
        del log_density
        return self

    def inverse(self, score: float) -> float:
        """Log density with this score, within the range of the training data."""
        raise NotImplementedError

    def __call__(self, log_density: Tensor) -> Tensor:
        """Scores of log densities."""
        raise NotImplementedError


@dataclass(frozen=True)
class MinMax(Normalizer):
    """s = clip((d − d_min) / (d_max − d_min), 0, 1) over the training data, as in the paper.

    A single training outlier lowers d_min and moves all other scores towards 1, where the density has no
    effect; see `SmoothQuantile`.
    """

    name = "minmax"

    @classmethod
    def fit(cls, log_density: Tensor) -> "MinMax":
        """Minimum and maximum of the training samples."""
        return cls(low=float(log_density.min()), high=float(log_density.max()))

    def merged(self, log_density: Tensor, share: float) -> "MinMax":
        """Smaller minimum and larger maximum."""
        del share
        low, high = float(log_density.min()), float(log_density.max())
        return MinMax(min(self.low, low), max(self.high, high))

    def inverse(self, score: float) -> float:
        """d_min + s (d_max − d_min)."""
        return self.low + score * (self.high - self.low)

    def __call__(self, log_density: Tensor) -> Tensor:
        """Scores (B,), exactly 0 below the range of the training data and 1 above."""
        return ((log_density - self.low) / (self.high - self.low)).clamp(0, 1)


@dataclass(frozen=True)
class SmoothQuantile(Normalizer):
    """Linear between two quantiles of the training data, with strictly monotone tails.

    With t = (d − low) / (high − low), q the level and b = q the score at `low`,

        s = b + r t                     0 ≤ t ≤ 1, with r = 1 − q − b
        s = b / (1 − t r / b)           t < 0
        s = 1 − q / (1 + (t − 1) r / q)   t > 1

    The tails continue the line with the same slope, and the lower one decreases like 1 / |d|. `low` and
    `high` are the quantiles q and 1 − q of the training log densities. They are robust to outliers, and
    different densities never tie, unlike with a hard clip.
    """

    level: float = 0.01
    name = "smooth-quantile"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.level < 0.5:
            raise ValueError(
                f"level is {self.level}; expected a number between 0 and 0.5: use 0.01"
            )

    @property
    def bottom(self) -> float:
        """Score at the lower quantile."""
        return self.level

    @classmethod
    def fit(cls, log_density: Tensor, level: float = 0.01) -> "SmoothQuantile":
        """Quantiles `level` and 1 − `level` of the log densities (N,) of training samples."""
        low, high = _quantiles(log_density, level)
        return cls(low=low, high=high, level=level)

    def merged(self, log_density: Tensor, share: float) -> "SmoothQuantile":
        """Weighted mean of both quantiles; an approximation, as the earlier samples are not stored."""
        new_low, new_high = _quantiles(log_density, self.level)
        low = (1 - share) * self.low + share * new_low
        return replace(self, low=low, high=(1 - share) * self.high + share * new_high)

    def inverse(self, score: float) -> float:
        """low + t (high − low) with t = (s − b) / r."""
        t = (score - self.bottom) / (1 - self.level - self.bottom)
        return self.low + t * (self.high - self.low)

    def lower_tail(self, fall: Tensor) -> Tensor:
        """Score relative to that at `low`, given how far the straight line would have fallen, ≥ 0."""
        return 1 / (1 + fall)

    def __call__(self, log_density: Tensor) -> Tensor:
        """Scores (B,), strictly between 0 and 1 up to rounding."""
        q, bottom = self.level, self.bottom
        rise = 1 - q - bottom
        t = (log_density - self.low) / (self.high - self.low)
        below = bottom * self.lower_tail(rise / bottom * (-t).clamp_min(0))
        above = 1 - q / (1 + rise / q * (t - 1).clamp_min(0))
        return torch.where(t < 0, below, torch.where(t > 1, above, bottom + rise * t))


@dataclass(frozen=True)
class HalfQuantile(SmoothQuantile):
    """`SmoothQuantile` with b = ½ and an exponential lower tail, s = b exp(t r / b) for t < 0.

    In-distribution samples score from ½ to 1, so their probabilities change little, and OOD samples are on
    the tail below. Chosen among b from 0.01 to 0.9 on validation images of digits and MNIST: b = 0.01
    doubles the Brier score, and larger b detects fewer corrupted images. The tail has to be steep, because
    logits of a ReLU network grow in proportion to the distance from the data: with a tail like 1 / |d|,
    points ten times as far away as the data kept enough evidence to be accepted.
    """

    name = "half-quantile"

    @property
    def bottom(self) -> float:
        """Score at the lower quantile."""
        return 0.5

    def lower_tail(self, fall: Tensor) -> Tensor:
        """exp(−fall)."""
        return (-fall).exp()

    def widened(self, log_density: Tensor) -> "HalfQuantile":
        """Lowers the range to the quantile `HELD_OUT_LEVEL` of held-out samples (N,), if that is lower.

        Networks map training samples closer together than new ones, which leave-one-out densities can't
        show. The level is higher than that of the training samples, because held-out data are few and
        contain errors: with 1%, points ten times as far as digits were accepted, with 10% the Brier score
        was larger.
        """
        low, _ = _quantiles(log_density, HELD_OUT_LEVEL)
        return replace(self, low=min(self.low, low))


def _quantiles(log_density: Tensor, level: float) -> tuple[float, float]:
    """Quantiles `level` and 1 − `level` of values (N,)."""
    ordered = log_density.double().sort().values
    # torch.quantile is limited to 2^24 values, so the order statistics are used directly.
    last = len(ordered) - 1
    return float(ordered[round(level * last)]), float(ordered[round((1 - level) * last)])


NORMALIZERS: Mapping[str, type[Normalizer]] = MappingProxyType(
    {kind.name: kind for kind in (MinMax, SmoothQuantile, HalfQuantile)}
)
