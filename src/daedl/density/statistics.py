"""Counts, means and scatter of features per class, computed in one pass and mergeable."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from daedl.checks import require_finite, require_targets
from daedl.distributed import sum_across
from daedl.names import look_up

Structure = Literal["full", "tied", "diagonal", "block"]

# Rows converted to float64 at a time (chosen): limits the working memory, large enough for fast products.
_ROWS = 4096
# Smallest norm that a feature vector is divided by: a zero vector remains zero.
_TINY = 1e-300


def unit_length(features: Tensor, parts: tuple[int, ...] = ()) -> Tensor:
    """Features (N, H), or each of their parts, divided by L2 norms, float64; zero vectors remain zero."""
    exact = features.double()
    if parts:
        return torch.cat([unit_length(part) for part in torch.split(exact, list(parts), dim=1)], 1)
    norms: Tensor = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    return exact / norms.clamp_min(_TINY)


@dataclass(frozen=True)
class ClassStatistics:
    """Statistics of features per class, in float64.

    Attributes:
        counts: samples per class N_c, (C,).
        means: means per class μ_c, (C, H).
        scatter: Σ_i (f_i − μ_c)(f_i − μ_c)ᵀ over the samples of a class: (C, H, H) for a full
            covariance, its diagonal (C, H), or its sum over the classes (H, H) for a tied one. For "block",
            (C, H, H) with zeros between features of different parts.
        structure: "full", "diagonal", "tied" or "block".
        normalized: whether the features, or each of their parts, were divided by their L2 norms.
        parts: columns per part of features from several blocks of a network; empty for one part.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    structure: Structure
    normalized: bool = False
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.parts and sum(self.parts) != self.num_features:
            raise ValueError(
                f"the parts {self.parts} have {sum(self.parts)} columns in total but the features have "
                f"{self.num_features}; expected equal numbers: pass the parts of the same outputs"
            )

    @classmethod
    def of(
        cls,
        features: Tensor,
        targets: Tensor,
        num_classes: int,
        structure: Structure = "full",
        normalized: bool = False,
        parts: Sequence[int] = (),
    ) -> "ClassStatistics":
        """Statistics of features (N, H) with class indices (N,).

        Working memory is the statistics and one block of rows in float64: O(C H²), independent of N.
        """
        look_up(dict.fromkeys(get_args(Structure)), structure, "covariance")
        if features.ndim != 2:
            raise ValueError(
                f"features have shape {tuple(features.shape)}; expected (samples, features): flatten "
                "the features of each sample"
            )
        require_targets(targets, num_classes, len(features))
        width = features.shape[1]
        shape = {
            "full": (num_classes, width, width),
            "tied": (width, width),
            "diagonal": (num_classes, width),
            "block": (num_classes, width, width),
        }[structure]
        statistics = cls(
            counts=torch.zeros(num_classes, dtype=torch.float64),
            means=torch.zeros(num_classes, width, dtype=torch.float64),
            scatter=torch.zeros(shape, dtype=torch.float64),
            structure=structure,
            normalized=normalized,
            parts=tuple(parts) if len(parts) > 1 else (),
        )
        for start in range(0, len(features), _ROWS):
            block = features[start : start + _ROWS].detach().to("cpu", torch.float64)
            require_finite(block, "features", f" from sample {start}")
            block = unit_length(block, statistics.parts) if normalized else block
            statistics._add(block, targets[start : start + _ROWS].cpu())
        return replace(statistics, scatter=statistics._masked(statistics.scatter))

    def _add(self, block: Tensor, targets: Tensor) -> None:
        """Add a block of rows in place; only for `of`, before the statistics are returned."""
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
        """Statistics of both sets of samples together."""
        if self._kind != other._kind:
            raise ValueError(
                f"can't merge {self._kind} with {other._kind}; expected the same covariance "
                "structure, normalisation, classes and features: use the same network and settings "
                "for both"
            )
        counts = self.counts + other.counts
        total = self.counts[:, None] * self.means + other.counts[:, None] * other.means
        means = total / counts.clamp_min(1)[:, None]
        scatter = self._scatter_about(means) + other._scatter_about(means)
        return replace(self, counts=counts, means=means, scatter=scatter)

    @property
    def _kind(self) -> str:
        """Description of everything that merged statistics must have in common."""
        normalized = "normalised" if self.normalized else "unnormalised"
        classes, width = self.means.shape
        parts = f" in parts {self.parts}" if self.parts else ""
        return f"{self.structure} statistics of {width} {normalized} features{parts} in {classes} classes"

    def with_samples(self, features: Tensor, targets: Tensor) -> "ClassStatistics":
        """Merge in features (N, H) with class indices (N,) of all processes."""
        added = ClassStatistics.of(
            features, targets, self.num_classes, self.structure, self.normalized, self.parts
        )
        return self.merge(added.across_processes())

    def across_processes(self) -> "ClassStatistics":
        """Statistics of the samples of all processes; unchanged in a single process."""
        counts = sum_across(self.counts)
        means = sum_across(self.counts[:, None] * self.means) / counts.clamp_min(1)[:, None]
        scatter = sum_across(self._scatter_about(means))
        return replace(self, counts=counts, means=means, scatter=scatter)

    def reduced(self, structure: Structure) -> "ClassStatistics":
        """The same samples' statistics for another structure, from those of full covariances."""
        if self.structure != "full":
            raise ValueError(
                f"can't compute {structure} statistics from {self.structure} ones; expected full ones: "
                "compute them from the features"
            )
        scatter = {
            "full": lambda: self.scatter,
            "tied": lambda: self.scatter.sum(0),
            "diagonal": lambda: self.scatter.diagonal(dim1=1, dim2=2).clone(),
            "block": lambda: self.scatter,
        }[structure]()
        reduced = replace(self, scatter=scatter, structure=structure)
        return replace(reduced, scatter=reduced._masked(scatter))

    def _masked(self, scatter: Tensor) -> Tensor:
        """`scatter`; for "block" with zeros between features of different parts."""
        if self.structure != "block" or not self.parts:
            return scatter
        owner = torch.repeat_interleave(torch.tensor(self.parts))
        return scatter * (owner[:, None] == owner)

    def _scatter_about(self, means: Tensor) -> Tensor:
        """Scatter about other means m (C, H): S_c + N_c (μ_c − m_c)(μ_c − m_c)ᵀ."""
        shift = self.means - means
        if self.structure == "diagonal":
            return self.scatter + self.counts[:, None] * shift.square()
        weighted = self.counts[:, None] * shift
        if self.structure == "tied":
            return self.scatter + weighted.T @ shift
        return self._masked(torch.baddbmm(self.scatter, weighted[:, :, None], shift[:, None, :]))

    def samples(self) -> Tensor:
        """Number of samples per covariance: (C,), or (1,) if tied."""
        return self.counts.sum().reshape(1) if self.structure == "tied" else self.counts

    def covariances(self) -> Iterator[Tensor]:
        """Yield each unbiased covariance as a new tensor: (H, H), or its diagonal (H,); one if tied.

        The covariance of a class with one sample is zero.
        """
        tied = self.structure == "tied"
        means = self.num_classes if tied else 1
        scatters = self.scatter[None] if tied else self.scatter
        for scatter, count in zip(scatters, self.samples(), strict=True):
            yield scatter / (count - means).clamp_min(1)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.means.shape[0]

    @property
    def num_features(self) -> int:
        """Number of features H."""
        return self.means.shape[1]
