"""Synthetic features of many classes, computed chunk by chunk."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Standard deviations of the columns fall from 1 by this power, and this many factors are shared (chosen).
_DECAY, _FACTORS = 0.25, 32
# Variances of a class along directions of its own, relative to those of all classes (chosen).
OWN = (60.0, 30.0, 15.0, 8.0)
# Squared Mahalanobis distance between the means of two classes (chosen, so that no AUROC is 1).
_BETWEEN = 120.0


@dataclass(frozen=True)
class Clusters:
    """Classes of Gaussian features: a covariance that all share, and directions of their own.

    Attributes:
        means: (C, H).
        own: directions times standard deviations (C, 4, H).
        scales: standard deviations of the columns (H,).
        factors: shared factors (F, H).
    """

    means: Tensor
    own: Tensor
    scales: Tensor
    factors: Tensor

    @classmethod
    def drawn(cls, classes: int, width: int, seed: int, own: tuple[float, ...] = OWN) -> "Clusters":
        """Classes drawn with a seed; the shared covariance does not depend on it."""
        shared = torch.Generator().manual_seed(0)
        scales = torch.arange(1, width + 1).pow(-_DECAY)
        factors = 2 * torch.randn(_FACTORS, width, generator=shared) * scales / math.sqrt(_FACTORS)
        generator = torch.Generator().manual_seed(seed)
        spread = math.sqrt(_BETWEEN / (2 * width))
        means = spread * scales * torch.randn(classes, width, generator=generator)
        directions = torch.randn(classes, len(own), width, generator=generator)
        directions /= torch.linalg.vector_norm(directions, dim=2, keepdim=True)
        deviations = torch.tensor(own).sqrt()[:, None]
        return cls(means, deviations * directions * scales, scales, factors)

    def sample(self, number: int, seed: int) -> tuple[Tensor, Tensor]:
        """Features (N, H) and class indices (N,); classes are drawn at random, then sorted."""
        generator = torch.Generator().manual_seed(seed)
        classes, _, width = self.own.shape
        targets = torch.randint(classes, (number,), generator=generator).sort().values
        features = torch.randn(number, width, generator=generator) * self.scales
        features.addmm_(torch.randn(number, len(self.factors), generator=generator), self.factors)
        sizes = torch.bincount(targets, minlength=classes).tolist()
        for c, rows in enumerate(torch.split(features, sizes)):
            along = torch.randn(len(rows), self.own.shape[1], generator=generator)
            rows.add_(self.means[c]).addmm_(along, self.own[c])
        return features, targets

    def chunks(self, number: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """`number` samples in chunks of `size`, seeds 1, 2, ..."""
        for index, start in enumerate(range(0, number, size), start=1):
            yield self.sample(min(size, number - start), index)
