"""Removal of one sample from a shared covariance with low-rank parts per class; see `class_parts`.

Let d be the deviation of the sample from the mean of its class c with n samples, v = K_c Ω_c d its
standardised values along the directions, e = d − G_cᵀ v its residual, g = n / (n − 1) and
γ = g / (1 − g ‖v‖²). By the Schur complement of a rank-one update, without the sample

    N_c becomes N_c − g d dᵀ + γ e eᵀ,   R becomes R − γ e eᵀ,   ν becomes ν − 1,   d becomes g d.

So the covariance of every other class changes by a matrix of rank one, that of its own by one of rank two.
"""

import math

import torch
from torch import Tensor

from daedl.density.class_parts import projections
from daedl.density.distances import inverse_factor
from daedl.density.gaussian import GaussianDensity
from daedl.density.statistics import unit_length

# Values of the directions of all samples in a block (chosen): limits the working memory.
_ELEMENTS = 2**20


class LeftOutParts:
    """Densities without each sample, with the directions, and amount and target of shrinkage held fixed.

    A class keeps its part even if it would have too few samples for one without the sample.
    """

    def __init__(self, density: GaussianDensity) -> None:
        statistics, self.density = density.statistics, density
        parts, self.directions = statistics.class_parts, statistics.directions
        self.counts, self.centers = statistics.counts, statistics.means
        del statistics  # which take 80 MB for 1,000 classes of 2,048 features
        self.bases, self.freedom = parts.bases, (self.counts - 1).clamp_min(1)
        self.removed = (1 - float(density.amount)) / float(parts.freedom - 1)
        covariance = self.removed * parts.residual
        covariance.diagonal().add_(float(density.amount) * float(density.scale))
        self.whitener, self.log_volume = inverse_factor(covariance)
        self.means = (self.centers - self.centers.mean(0)) @ self.whitener.T
        self.factors = parts.factors @ self.whitener.T
        self.along, self.log_dets = projections(self.factors, self.freedom)
        self.offsets = torch.einsum("crh,ch->cr", self.along, self.means)

    def log_density(self, features: Tensor, targets: Tensor) -> Tensor:
        """Log density (N,) of each of the features (N, H) with class indices (N,)."""
        blocks = max(1, _ELEMENTS // self.along[0].numel())
        split = zip(torch.split(features, blocks), torch.split(targets, blocks), strict=True)
        return torch.cat([self._block(rows.double(), own) for rows, own in split])

    def _block(self, features: Tensor, own: Tensor) -> Tensor:
        density, counts = self.density, self.counts
        rows = unit_length(features, density.parts) if density.normalized else features
        terms = self._log_normals(rows - self.centers[own], own)
        left = counts.log().repeat(len(own), 1)
        left.scatter_(1, own[:, None], (counts[own, None] - 1).log())
        # A class of one sample vanishes with it, and nothing else changes.
        alone = counts[own] == 1
        shares = (counts / counts.sum()).log()
        terms[alone] = density.class_log_densities(features[alone]).cpu() - shares
        return (terms + left).logsumexp(1) - (counts.sum() - 1).log()

    def _log_normals(self, deviations: Tensor, own: Tensor) -> Tensor:
        """ln N (N, C) without each sample, whose `deviations` (N, H) are from the mean of its class."""
        n = self.counts[own]
        g = n / (n - 1).clamp_min(1)
        values = self._values(deviations, own)
        gamma = g / (1 - g * values.square().sum(1))
        z = deviations @ self.whitener.T
        e = z - torch.einsum("nr,nrh->nh", values, self.factors[own])
        points, flat = z + self.means[own], self.along.flatten(0, 1).T
        along_z = (points @ flat).view(-1, *self.offsets.shape) - self.offsets
        along_e = (e @ flat).view(-1, *self.offsets.shape)
        # The covariances of other classes lose removed · gamma · e eᵀ.
        lengths = torch.cdist(points, self.means, compute_mode="use_mm_for_euclid_dist").square()
        products = (e * points).sum(1, keepdim=True) - e @ self.means.T
        mixed = products - (along_z * along_e).sum(-1)
        along = e.square().sum(1, keepdim=True) - along_e.square().sum(-1)
        weight = self.removed * gamma[:, None]
        left = 1 - weight * along
        distances = lengths - along_z.square().sum(-1) + weight * mixed.square() / left
        log_dets = self.log_dets + left.log()
        row = torch.arange(len(own))
        distances[row, own], log_dets[row, own] = self._own(
            (z, e), (along_z[row, own], along_e[row, own]), gamma, own
        )
        constant = deviations.shape[1] * math.log(2 * math.pi) - 2 * float(self.log_volume)
        return -0.5 * (distances + log_dets + constant)

    def _values(self, deviations: Tensor, own: Tensor) -> Tensor:
        """Standardised values K_c Ω_c d (N, r)."""
        if self.directions is None:
            raise ValueError("the statistics have no directions; expected tied-low-rank ones")
        directions = self.directions[own].double()
        along = torch.einsum("nrh,nh->nr", directions, deviations)
        return torch.einsum("nsr,nr->ns", self.bases[own], along)

    def _own(
        self,
        whitened: tuple[Tensor, Tensor],
        along: tuple[Tensor, Tensor],
        gamma: Tensor,
        own: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Squared distance and log determinant (N,) of its own class, whose mean moves away as well.

        One degree of freedom less scales N_c, and with it the squares along A_c.
        """
        n = self.counts[own]
        g, before, after = n / (n - 1).clamp_min(1), self.freedom[own], (n - 2).clamp_min(1)
        squares = self.along[own].square().sum(2)
        values = before[:, None] * squares / (1 - squares)
        ratio = (values + before[:, None]) / (values + after[:, None])
        (z, e), (p, q) = whitened, along
        zz = z.square().sum(1) - (ratio * p.square()).sum(1)
        ze = (z * e).sum(1) - (ratio * p * q).sum(1)
        ee = e.square().sum(1) - (ratio * q.square()).sum(1)
        a, b = -g / after, gamma * (1 / after - self.removed)
        left = (1 + a * zz) * (1 + b * ee) - a * b * ze.square()
        distances = g.square() * (zz + b * (zz * ee - ze.square())) / left
        return distances, (values / after[:, None]).log1p().sum(1) + left.log()
