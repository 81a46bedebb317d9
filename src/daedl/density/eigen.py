"""Eigendecomposition of covariances, which costs little where a class has few samples."""

from typing import NamedTuple

import torch
from torch import Tensor

# A covariance of n samples in H dimensions has at most n − 1 eigenvalues above zero. If that is at most this
# share of H, the others are not computed (480 samples in 1,584 dimensions: a fifth of the time). Up to this
# share a product with the eigenvectors also costs less than one with a triangular factor in eight blocks.
FEW = 9 / 16
# Squared distances below this fraction of the largest variance are rounding errors (float64).
_ROUNDING = 1e-14


class Eigen(NamedTuple):
    """Spectral decomposition of a covariance (H, H).

    Attributes:
        values: eigenvalues (R,), descending within each part; the H − R others are zero.
        vectors: their eigenvectors (H, R), in columns.
        widths: number of eigenvalues per part, a diagonal block.
    """

    values: Tensor
    vectors: Tensor
    widths: tuple[int, ...]

    def leading(self, number: int) -> tuple[Tensor, Tensor]:
        """The first `number` eigenvalues and eigenvectors, and zeros in place of those not computed."""
        missing = max(number - len(self.values), 0)
        values, vectors = (torch.nn.functional.pad(x, (0, missing)) for x in self[:2])
        return values[:number], vectors[:, :number]

    def spectrum(self) -> Tensor:
        """All H eigenvalues, ascending."""
        return self.leading(max(self.vectors.shape))[0].sort().values


def decompose(covariance: Tensor, samples: float, parts: tuple[int, ...] = ()) -> Eigen:
    """Decompose a covariance (H, H) of `samples` samples; `parts` are the widths of its diagonal blocks."""
    if parts:
        # Separately, because eigenvectors of equal eigenvalues could mix parts.
        rows = enumerate(torch.split(covariance, list(parts)))
        blocks = [torch.split(row, list(parts), dim=1)[k] for k, row in rows]
        found = [decompose(block, samples) for block in blocks]
        vectors: Tensor = torch.block_diag(*(each.vectors for each in found))  # type: ignore[no-untyped-call]
        widths = tuple(len(each.values) for each in found)
        return Eigen(torch.cat([each.values for each in found]), vectors, widths)
    if samples - 1 <= FEW * len(covariance):
        vectors, roots, _ = torch.linalg.svd(_factor(covariance), full_matrices=False)
        return Eigen(roots.square(), vectors, (len(roots),))
    values, vectors = torch.linalg.eigh(covariance)
    return Eigen(values.clamp_min(0).flip(0), vectors.flip(1), (len(values),))


def _factor(covariance: Tensor) -> Tensor:
    """F (H, R) with F Fᵀ = S and R the rank of S: Cholesky factor with complete pivoting."""
    from scipy.linalg.lapack import dpstrf  # noqa: PLC0415 (slow to import)

    largest = float(covariance.diagonal().amax())
    found, order, rank, _ = dpstrf(covariance.numpy(), lower=1, tol=_ROUNDING * largest)
    # At least one column, also of a covariance of zeros.
    factor = torch.from_numpy(found).tril()[:, : max(int(rank), 1)]
    return torch.empty_like(factor).index_copy_(0, torch.from_numpy(order).long() - 1, factor)
