"""Means and standard deviations of the columns of a table, which belong to a model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from daedl.distributed import sum_across

# Standardised values are clipped here to prevent overflow; far outside of any training data (chosen).
LARGEST = 1e8
# Largest deviation, and absolute mean; the smallest deviation is its inverse. Variances then are within the
# range of float64, in which predictions are.
WIDEST = 1e150


@dataclass(frozen=True)
class Columns:
    """Columns of a table, in units in which every one has mean 0 and standard deviation 1.

    Attributes:
        mean, std: one number per column; the deviation of a constant column is 1.
        names: of the columns, or empty.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.mean:
            raise ValueError("there are no columns; expected at least one")
        for part in (self.std, self.names or self.mean):
            if len(part) != len(self.mean):
                raise ValueError(
                    f"{len(part)} values for {len(self.mean)} columns; expected one per column"
                )
        wrong = not all(abs(each) <= WIDEST for each in self.mean)  # True for NaN
        if wrong or not all(1 / WIDEST <= each <= WIDEST for each in self.std):
            raise ValueError(
                f"mean is {self.mean} and std {self.std}; expected finite means and deviations from "
                f"{1 / WIDEST:g} to {WIDEST:g}: choose other units for the data"
            )

    @classmethod
    def units(cls, number: int, names: Sequence[str] = ()) -> Self:
        """Units in which values remain as they are."""
        return cls((0.0,) * number, (1.0,) * number, tuple(names))

    @classmethod
    def of(cls, batches: Iterable[Tensor], names: Sequence[str] = (), least: int = 1) -> Self:
        """Computes them from the rows (B, D) of all processes, in one pass.

        Deviations are summed about the first row of this process, which avoids cancellation. With `least` of
        2, for targets, constant columns and fewer rows are rejected.
        """
        first, sums = torch.zeros(0), torch.zeros(0)
        for batch in batches:
            rows = batch.detach().cpu().double().flatten(1)
            if not len(sums):
                first, sums = rows[0], torch.zeros(3, rows.shape[1], dtype=torch.float64)
            moved = rows - first
            sums += torch.stack(
                (torch.full_like(first, len(rows)), moved.sum(0), moved.square().sum(0))
            )
        count, total, squares = sums
        mean = first + total / count
        scatter = squares - total.square() / count
        # Joined over processes by their counts, means and scatters.
        joined = sum_across(torch.stack((count, count * mean)))
        center = joined[1] / joined[0]
        scatter = sum_across(scatter + count * (mean - center).square())
        # The deviations of a constant column are rounding errors.
        tiny = 1e-12 * (center.abs() + 1e-300)
        std = (scatter.clamp_min(0) / joined[0]).sqrt()
        if not std.isfinite().all():
            raise ValueError(
                "the values of a column differ by more than 1e150, whose squares overflow; expected a "
                "finite standard deviation: change the unit of the column"
            )
        if least > 1:
            _require_variation(std > tiny, int(joined[0, 0]), center, names)
        std = torch.where(std > tiny, std, torch.ones_like(std))
        return cls(tuple(center.tolist()), tuple(std.tolist()), tuple(names))

    def standardized(self, rows: Tensor) -> Tensor:
        """Returns (rows − mean) / std for rows (B, D), clipped to ± `LARGEST`."""
        mean, std = self.tensors(rows)
        return (rows - mean).div_(std).clamp_(-LARGEST, LARGEST)

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns means and standard deviations (D,) with the dtype and device of `like`."""
        mean, std = self._tensors
        return mean.to(like), std.to(like)

    @cached_property
    def _tensors(self) -> Tensor:
        return torch.tensor((self.mean, self.std), dtype=torch.float64)


def in_float64(tensor: Tensor) -> Tensor:
    """Returns `tensor` in float64; on the CPU if it is on Apple's MPS, which has no float64."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


@dataclass(frozen=True)
class Scaling:
    """Units of the inputs and targets of a regressor.

    Attributes:
        features: None if inputs are prepared outside of the regressor.
        targets: in whose units the network is trained.
    """

    targets: Columns
    features: Columns | None = None


def _require_variation(varies: Tensor, rows: int, center: Tensor, names: Sequence[str]) -> None:
    """Raises unless all targets vary."""
    if rows < 2:
        raise ValueError(
            f"the training data have {rows} sample; expected at least 2, better 100: add samples"
        )
    for number in (~varies).nonzero().flatten().tolist():
        name = f" {names[number]!r}" if names else f" {number}" if len(center) > 1 else ""
        raise ValueError(
            f"target{name} is {float(center[number]):g} for all {rows} training samples; expected different "
            "values: a constant needs no model; choose another column"
        )
