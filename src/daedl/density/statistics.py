"""Class-wise counts, means and scatter of features, gathered in one pass and mergeable."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from daedl.checks import require_finite, require_targets
from daedl.distributed import sum_across
from daedl.names import look_up

Structure = Literal["full", "tied", "diagonal"]


def require_structure(structure: Structure) -> None:
    """Raise unless `structure` is one of the known ones."""
    look_up({name: name for name in get_args(Structure)}, structure, "covariance")


# Rows turned into float64 at a time: bounds the working memory, and is long enough for a fast product.
_ROWS = 4096


@dataclass(frozen=True)
class ClassStatistics:
    """Float64 statistics of the features of each class.

    Attributes:
        counts: samples of each class N_c, (C,).
        means: μ_c, (C, H).
        scatter: Σ_i (f_i − μ_c)(f_i − μ_c)ᵀ over the samples of a class: (C, H, H) for a full
            covariance, its diagonal (C, H), or its sum over the classes (H, H) for a tied one.
        structure: "full", "diagonal" or "tied".
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    structure: Structure

    @classmethod
    def of(
        cls, features: Tensor, targets: Tensor, num_classes: int, structure: Structure = "full"
    ) -> "ClassStatistics":
        """Statistics of features (N, H) with class indices (N,).

        Working memory is the statistics themselves and a block of rows in float64: O(C H²),
        whatever N is.
        """
        require_structure(structure)
        if features.ndim != 2:
            raise ValueError(
                f"features have shape {tuple(features.shape)}; expected (samples, features): flatten "
                "each sample's features to a vector"
            )
        require_targets(targets, num_classes, len(features))
        width = features.shape[1]
        shape = {
            "full": (num_classes, width, width),
            "tied": (width, width),
            "diagonal": (num_classes, width),
        }[structure]
        statistics = cls(
            counts=torch.zeros(num_classes, dtype=torch.float64),
            means=torch.zeros(num_classes, width, dtype=torch.float64),
            scatter=torch.zeros(shape, dtype=torch.float64),
            structure=structure,
        )
        for start in range(0, len(features), _ROWS):
            block = features[start : start + _ROWS].detach().to("cpu", torch.float64)
            require_finite(block, "features", f" from sample {start}")
            statistics._add(block, targets[start : start + _ROWS].cpu())
        return statistics

    def _add(self, block: Tensor, targets: Tensor) -> None:
        """Merge a block of rows in, in place: only `of` calls it, on what it is still building."""
        for c in torch.unique(targets).tolist():
            rows = block[targets == c]
            mean = rows.mean(0)
            rows -= mean
            before, added = float(self.counts[c]), len(rows)
            shift = mean - self.means[c]
            scatter = self.scatter if self.structure == "tied" else self.scatter[c]
            weight = before * added / (before + added)
            if self.structure == "diagonal":
                scatter += rows.square().sum(0) + weight * shift.square()
            else:
                scatter.addmm_(rows.T, rows).addr_(shift, shift, alpha=weight)
            self.counts[c] += added
            self.means[c] += shift * (added / (before + added))

    def merge(self, other: "ClassStatistics") -> "ClassStatistics":
        """The statistics of both sets of samples together."""
        if self.structure != other.structure or self.means.shape != other.means.shape:
            raise ValueError(
                f"cannot merge {self.structure} statistics of shape {tuple(self.means.shape)} with "
                f"{other.structure} ones of shape {tuple(other.means.shape)}; expected the same "
                "covariance structure, classes and features: fit both with the same network"
            )
        counts = self.counts + other.counts
        total = self.counts[:, None] * self.means + other.counts[:, None] * other.means
        means = total / counts.clamp_min(1)[:, None]
        scatter = self._scatter_about(means) + other._scatter_about(means)
        return ClassStatistics(counts, means, scatter, self.structure)

    def with_samples(self, features: Tensor, targets: Tensor) -> "ClassStatistics":
        """The statistics with more features (N, H) of classes (N,) too, those of all processes."""
        added = ClassStatistics.of(features, targets, self.num_classes, self.structure)
        return self.merge(added.across_processes())

    def across_processes(self) -> "ClassStatistics":
        """The statistics of all processes' samples together; the same in a single process."""
        counts = sum_across(self.counts)
        means = sum_across(self.counts[:, None] * self.means) / counts.clamp_min(1)[:, None]
        scatter = sum_across(self._scatter_about(means))
        return ClassStatistics(counts, means, scatter, self.structure)

    def _scatter_about(self, means: Tensor) -> Tensor:
        """Scatter about other `means` (C, H): S_c + N_c (μ_c − m_c)(μ_c − m_c)ᵀ."""
        shift = self.means - means
        if self.structure == "diagonal":
            return self.scatter + self.counts[:, None] * shift.square()
        weighted = self.counts[:, None] * shift
        if self.structure == "tied":
            return self.scatter + weighted.T @ shift
        return torch.baddbmm(self.scatter, weighted[:, :, None], shift[:, None, :])

    def samples(self) -> Tensor:
        """Samples behind each covariance: (C,), or (1,) if tied."""
        return self.counts.sum().reshape(1) if self.structure == "tied" else self.counts

    def covariances(self) -> Iterator[Tensor]:
        """Each unbiased covariance in turn, a new tensor: (H, H), or its diagonal (H,); one if tied.

        A class of one sample has covariance zero.
        """
        tied = self.structure == "tied"
        means = self.num_classes if tied else 1
        scatters = self.scatter[None] if tied else self.scatter
        for scatter, count in zip(scatters, self.samples(), strict=True):
            yield scatter / (count - means).clamp_min(1)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.means.shape[0]

    @property
    def num_features(self) -> int:
        """H."""
        return self.means.shape[1]
