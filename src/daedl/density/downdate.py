"""Largest eigenvalues of a diagonal matrix minus a rank-one matrix, for many rank-one matrices at once."""

import torch
from torch import Tensor

# The iteration converges quadratically; 30 steps are never needed (measured: 4 to 9).
_STEPS = 30
_CONVERGED = 1e-14
# Squares below this fraction of the largest value are raised to it: each pole then has a root next to it.
_LEAST_SQUARE = 1e-24


def downdated(values: Tensor, z: Tensor, weight: float, rank: int) -> tuple[Tensor, Tensor]:
    """The `rank` largest eigenvalues μ_i of diag(values) − weight · z zᵀ, and (v_iᵀ z)² of its eigenvectors.

    Both (N, rank), for values (H,) in descending order, z (N, H) and rank < H. The eigenvalues are the roots
    of the secular equation (Golub, 1973)

        1 = Σ_j weight z_j² / (values_j − μ),   values_{i+1} ≤ μ_i ≤ values_i.

    At a root, v_i is proportional to z_j / (values_j − μ_i), which implies
    (v_iᵀ z)⁻² = weight² Σ_j z_j² / (values_j − μ_i)².
    """
    if weight == 0:
        return values[:rank].expand(len(z), rank), z[:, :rank].square()
    squares = (weight * z.square()).clamp_min(_LEAST_SQUARE * float(values[0]))
    lengths = z.square().sum(1)
    found, along = [], []
    for i in range(rank):
        gap = float(values[i] - values[i + 1])
        if gap <= torch.finfo(values.dtype).eps * float(values[0]):
            # Of two equal values one is unchanged, with an eigenvector orthogonal to z.
            found.append(values[i].expand(len(z)))
            along.append(torch.zeros_like(lengths))
            continue
        below, slope = _root(values, squares, i, gap)
        found.append(values[i] - below)
        along.append(torch.minimum(1 / (weight * slope), lengths))
    return torch.stack(found, 1), torch.stack(along, 1)


def _root(values: Tensor, squares: Tensor, i: int, gap: float) -> tuple[Tensor, Tensor]:
    """δ = values_i − μ_i in (0, gap), and Σ_j squares_j / (values_j − μ_i)², both (N,).

    Each step replaces the sums over j ≤ i and j > i by u + p / δ and l + q / (gap − δ) with the same value
    and slope, and solves the resulting quadratic equation (Bunch, Nielsen and Sorensen, 1978).
    """
    shift = values - values[i]
    low, high = torch.zeros(len(squares)).to(values), torch.full((len(squares),), gap).to(values)
    delta = high / 2
    for _ in range(_STEPS):
        value, (upper, lower) = _secular(shift, squares, delta, i, gap)
        low, high = torch.where(value < 0, delta, low), torch.where(value < 0, high, delta)
        p, q = delta.square() * upper, (gap - delta).square() * lower
        c = value + p / delta - q / (gap - delta)
        linear = c * gap + p + q
        root = (linear.square() - 4 * c * p * gap).clamp_min(0).sqrt()
        # The form without cancellation.
        step = torch.where(linear >= 0, 2 * p * gap / (linear + root), (linear - root) / (2 * c))
        step = step.clamp(low, high)
        done = ((step - delta).abs() <= _CONVERGED * step).all()
        delta = step
        if done:
            break
    _, (upper, lower) = _secular(shift, squares, delta, i, gap)
    return delta, upper + lower


def _secular(
    shift: Tensor, squares: Tensor, delta: Tensor, i: int, gap: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """1 − Σ_j squares_j / (shift_j + δ), and minus its slope over j ≤ i and over j > i, all (N,)."""
    eps = torch.finfo(shift.dtype).eps
    distance = shift + delta[:, None]
    # δ is rounded relative to gap: it must not reach the next pole.
    distance[:, i + 1] = distance[:, i + 1].clamp_max(-eps * gap)
    terms = squares / distance
    value = 1 - terms.sum(1)
    slopes = terms / distance
    return value, (slopes[:, : i + 1].sum(1), slopes[:, i + 1 :].sum(1))
