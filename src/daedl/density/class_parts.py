"""Covariances of low rank per class, from one-sided sketches of the scatter, added to a shared residual.

The scatter S_c (H, H) of a class is never formed. From its products with r directions, Y_c = Ω_c S_c (r, H),
follows the part that the directions explain (the Nyström approximation of S_c; Williams and Seeger, 2000):

    N_c = Y_cᵀ (Ω_c Y_cᵀ)⁻¹ Y_c ≼ S_c

It is the regression of the features on the r values Ω_c f. What remains of all classes is pooled, and
Σ_c = N_c / (N_c − 1) + R / ν with R = Σ_c (S_c − N_c).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Samples per direction that a class must exceed for a part of its own (chosen); others are pooled.
SAMPLES_PER_DIRECTION = 8
# Variances along combinations of directions, relative to the largest, below which they are rounding
# errors of sketches in float32 (chosen).
_LEAST = 1e-6
# Column blocks of a symmetric product: 9/16 of the operations (measured: faster than 4, 6 and 12).
_BLOCKS = 8


@dataclass(frozen=True)
class ClassParts:
    """Decomposition of the scatter of C classes.

    Attributes:
        factors: G_c (C, r, H) with N_c = G_cᵀ G_c.
        bases: K_c (C, r, r) with G_c = K_c Y_c, and K_c Ω_c d the standardised values of a deviation d.
        residual: R (H, H).
        freedom: ν, the degrees of freedom of R.
    """

    factors: Tensor
    bases: Tensor
    residual: Tensor
    freedom: Tensor

    @classmethod
    def of(
        cls, counts: Tensor, scatter: Tensor, directions: Tensor, sketch: Tensor
    ) -> "ClassParts":
        """From the counts (C,), Σ_c S_c (H, H), Ω_c (C, r, H) and Y_c (C, r, H)."""
        along = torch.stack(
            [y @ each.double().T for y, each in zip(sketch, directions, strict=True)]
        )
        values, vectors = torch.linalg.eigh((along + along.mT) / 2)
        used = values > _LEAST * values[:, -1:]
        used &= have_parts(counts, directions.shape[1])[:, None]
        scales = torch.where(used, values, torch.inf).rsqrt()
        bases = scales[:, :, None] * vectors.mT
        factors = bases @ sketch
        residual = scatter.clone()
        add_symmetric(residual, factors.flatten(0, 1), -1.0)
        freedom = (counts - 1).clamp_min(0).sum() - used.sum()
        return cls(factors, bases, residual, freedom)


def have_parts(counts: Tensor, rank: int) -> Tensor:
    """Whether classes (C,) of `counts` samples have enough for a part with `rank` directions."""
    return counts > SAMPLES_PER_DIRECTION * rank


def projections(factors: Tensor, freedom: Tensor) -> tuple[Tensor, Tensor]:
    """A_c (C, r, H) with xᵀ(I + V_cᵀV_c / f_c)⁻¹x = ‖x‖² − ‖A_c x‖², and ln |I + V_cᵀV_c / f_c| (C,).

    For factors V_c (C, r, H) and degrees of freedom f_c (C,).
    """
    values, vectors = torch.linalg.eigh(factors @ factors.mT)
    values = values.clamp_min(0)
    scales = (values + freedom[:, None]).rsqrt()
    return (scales[:, :, None] * vectors.mT) @ factors, (values / freedom[:, None]).log1p().sum(1)


def add_symmetric(total: Tensor, rows: Tensor, weight: float = 1.0) -> None:
    """Add weight · ZᵀZ of rows Z (N, H) to `total` (H, H), in place; entries are not computed twice."""
    start = 0
    for left in rows.tensor_split(_BLOCKS, dim=1):
        stop = start + left.shape[1]
        product = left.T @ rows[:, :stop]
        total[start:stop, :stop].add_(product, alpha=weight)
        total[:start, start:stop].add_(product[:, :start].T, alpha=weight)
        start = stop
