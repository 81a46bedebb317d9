"""Leave-one-out density of training samples.

In-sample densities are biased: in high dimensions they are larger than those of new samples. Leaving each
sample out of its own fit removes this bias at little cost, because removing one sample is a rank-one
update of the covariance.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from daedl.density.downdate import downdated
from daedl.density.eigen import Eigen
from daedl.density.gaussian import GaussianDensity
from daedl.density.left_out_parts import LeftOutParts
from daedl.density.statistics import ClassStatistics, unit_length

# Samples per block (chosen): limits the working memory.
_ROWS = 4096
# Variances and determinants that a removal reduces by more than this factor are rounding errors (float64).
_LEAST = 1e-12


def left_out_log_density(
    density: GaussianDensity,
    features: Tensor,
    targets: Tensor,
    statistics: ClassStatistics | None = None,
) -> Tensor:
    """Log density (N,), float64, on the CPU, of training features (N, H) with class indices (N,).

    `density` was fitted to these samples, and possibly to others. The result equals N separate fits, each
    without one sample and with the amount of shrinkage held fixed. A class of one sample vanishes with
    it. A class of two samples keeps its own covariance, because that of one sample is undefined.
    `statistics` are those of the density, whose decompositions are used again.
    """
    features, targets = features.cpu(), targets.cpu()
    if density.structure == "tied-low-rank":
        return LeftOutParts(density).log_density(features, targets)
    statistics = statistics or density.statistics
    shares, total = statistics.counts / statistics.counts.sum(), statistics.counts.sum()
    log_density = torch.empty(len(targets), dtype=torch.float64)
    for c, (covariance, removal) in enumerate(
        zip(_bases(density, statistics), _removals(density), strict=True)
    ):
        mean, counts = statistics.means[c], statistics.counts.clone()
        counts[c] -= 1
        own = (targets == c).nonzero()[:, 0]
        for rows in torch.split(own, _ROWS) if len(own) else ():
            points = features[rows].double()
            deviations = (
                unit_length(points, density.parts) if density.normalized else points
            ) - mean
            if isinstance(covariance, _Tied):
                terms = covariance.log_normals(deviations, removal, c)
            else:
                terms = density.class_log_densities(features[rows]).cpu() - shares.log()
            terms[:, c] = covariance.log_normal(deviations, removal)
            log_density[rows] = (terms + (counts / (total - 1)).log()).logsumexp(-1)
    return log_density


@dataclass(frozen=True)
class _Removal:
    """Removal of a sample with deviation d from the mean of its class, from the covariance S:

        S becomes a S − b d dᵀ,   d becomes g d.

    `amount` and `scale` are those of the shrinkage.
    """

    a: float
    b: float
    g: float
    amount: float
    scale: float

    def target(self, trace: Tensor, lengths: Tensor, width: int) -> Tensor:
        """Mean variance (N,) afterwards, for tr S and ‖d‖² (N,); zero only by rounding."""
        target = self.scale + ((self.a - 1) * trace - self.b * lengths) / width
        return target.clamp_min(_LEAST * self.scale)


def _removals(density: GaussianDensity) -> Iterator[_Removal]:
    """Yield the removal of a sample of each class."""
    counts, shrunk = density.counts.tolist(), density.shrunk
    classes = len(counts)
    amounts, scales = (x.expand(classes).tolist() for x in (shrunk.amount, shrunk.scale))
    for n, amount, scale in zip(counts, amounts, scales, strict=True):
        freedom = sum(counts) - classes if density.structure == "tied" else n - 1
        g = n / max(n - 1, 1)
        if freedom > 1 and n > 1:
            yield _Removal(freedom / (freedom - 1), g / (freedom - 1), g, amount, scale)
        else:
            yield _Removal(1.0, 0.0, g, amount, scale)


def _bases(
    density: GaussianDensity, statistics: ClassStatistics
) -> "Iterator[_Diagonal | _Full | _Tied | _LowRank]":
    """Yield the decomposed covariance of each class."""
    if density.structure == "diagonal":
        yield from map(_Diagonal, statistics.covariances())
        return
    if density.structure == "tied":
        (eigen,) = statistics.decompositions
        # About their mean, which avoids cancellation.
        offsets = (statistics.means - statistics.means.mean(0)) @ eigen.vectors
        tied = _Tied(eigen, offsets=offsets, squares=offsets.square())
        yield from repeat(tied, len(statistics.means))
        return
    for eigen in statistics.decompositions:
        yield _Full(eigen) if density.rank is None else _LowRank(eigen, density.rank)


@dataclass(frozen=True)
class _Full:
    """A covariance matrix in its eigenbasis. The removal is a rank-one update of each of its parts."""

    eigen: Eigen

    def log_normal(self, deviations: Tensor, removal: _Removal) -> Tensor:
        """ln N (N,) without the sample, about the mean of its class, which moves away from the sample."""
        z, m, target, left = self._removed(deviations, removal)
        distances = removal.g**2 * (self._by_part(z.square() / m) / left).sum(1)
        width, rank = self.eigen.vectors.shape
        # Deviations from the own mean lie in the directions of the eigenvectors; the others have variance 0.
        zeros = (width - rank) * (removal.amount * target).log() if rank < width else 0.0
        return _log_normal(distances, m.log().sum(1) + left.log().sum(1) + zeros, width)

    def _removed(
        self, deviations: Tensor, removal: _Removal
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """d and M = a S + target (N, R) in the eigenbasis, the target (N,), 1 − b dᵀM⁻¹d (N, K) per part."""
        values, vectors, _ = self.eigen
        kept, z = 1 - removal.amount, deviations @ vectors
        target = removal.target(values.sum(), z.square().sum(1), len(vectors))
        m = kept * removal.a * values + removal.amount * target[:, None]
        left = 1 - kept * removal.b * self._by_part(z.square() / m)
        return z, m, target, left.clamp_min(_LEAST)

    def _by_part(self, rows: Tensor) -> Tensor:
        """Sums (N, K) of rows (N, R) over the columns of each part."""
        return torch.stack(
            [part.sum(1) for part in torch.split(rows, list(self.eigen.widths), 1)], 1
        )


@dataclass(frozen=True, kw_only=True)
class _Tied(_Full):
    """The covariance matrix of all classes, and their means (C, H) in its eigenbasis with their squares."""

    offsets: Tensor
    squares: Tensor

    def log_normals(self, deviations: Tensor, removal: _Removal, own: int) -> Tensor:
        """ln N (N, C) without the sample, about the means of all classes; `own` is its class.

        By Σ⁻¹ = M⁻¹ + b M⁻¹ d dᵀ M⁻¹ / (1 − b dᵀM⁻¹d) (Sherman-Morrison), the removal changes the distance
        to the mean of every class. Products with differences of means are expanded: with many classes,
        matrices of differences, one per class, would take most of the time.
        """
        z, m, _, left = self._removed(deviations, removal)
        mean, inverse, weighted = self.offsets[own], 1 / m, z / m
        length = (weighted * z).sum(1, keepdim=True)
        products = weighted @ self.offsets.T - (weighted @ mean)[:, None]
        between = inverse @ self.squares.T - 2 * (inverse * mean) @ self.offsets.T
        distances = length - 2 * products + between + (inverse @ mean.square())[:, None]
        b = (1 - removal.amount) * removal.b
        distances = distances + b * (length - products).square() / left
        log_det = m.log().sum(1, keepdim=True) + left.log()
        return _log_normal(distances, log_det, len(mean))


@dataclass(frozen=True)
class _LowRank:
    """A covariance whose smaller eigenvalues are replaced by their mean."""

    eigen: Eigen
    rank: int

    def log_normal(self, deviations: Tensor, removal: _Removal) -> Tensor:
        """ln N (N,) without the sample, about its class mean; the directions change with the sample."""
        known, vectors = self.eigen.leading(max(len(self.eigen.values), self.rank + 1))
        width, kept = len(vectors), 1 - removal.amount
        z = deviations @ vectors
        lengths, trace = z.square().sum(1), known.sum()
        target = removal.target(trace, lengths, width)
        values, along = downdated(removal.a * known, z, removal.b, self.rank)
        rest = (removal.a * trace - removal.b * lengths - values.sum(1)) / (width - self.rank)
        rest = (kept * rest + removal.amount * target).clamp_min(_LEAST * removal.scale)
        values = kept * values + removal.amount * target[:, None]
        distances = (along / values).sum(1) + (lengths - along.sum(1)).clamp_min(0) / rest
        log_det = values.log().sum(1) + (width - self.rank) * rest.log()
        return _log_normal(removal.g**2 * distances, log_det, width)


@dataclass(frozen=True)
class _Diagonal:
    """Variances (H,)."""

    variances: Tensor

    def log_normal(self, deviations: Tensor, removal: _Removal) -> Tensor:
        """ln N (N,) without the sample, about its class mean."""
        squares = deviations.square()
        target = removal.target(self.variances.sum(), squares.sum(1), len(self.variances))
        left = removal.a * self.variances - removal.b * squares
        left = (1 - removal.amount) * left + removal.amount * target[:, None]
        left = left.clamp_min(_LEAST * self.variances).clamp_min(_LEAST**2 * removal.scale)
        distances = removal.g**2 * (squares / left).sum(1)
        return _log_normal(distances, left.log().sum(1), len(self.variances))


def _log_normal(distances: Tensor, log_det: Tensor, width: int) -> Tensor:
    """ln N = −½ (distance + ln |Σ| + H ln 2π)."""
    return -0.5 * (distances + log_det + width * math.log(2 * math.pi))
