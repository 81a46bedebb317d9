"""Counts, means and scatter of features per class, computed in one pass and mergeable."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Literal, get_args

import torch
from torch import Tensor

from daedl.checks import require_finite, require_targets
from daedl.density.class_parts import ClassParts, add_symmetric
from daedl.density.eigen import Eigen, decompose
from daedl.distributed import sum_across
from daedl.names import look_up

Structure = Literal["full", "tied", "diagonal", "block", "tied-low-rank"]

# Rows converted to float64 at a time (chosen): limits the working memory, large enough for fast products.
_ROWS = 8192
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
            (C, H, H) with zeros between features of different parts. For "tied-low-rank" as if tied.
        structure: "full", "diagonal", "tied", "block" or "tied-low-rank".
        normalized: whether the features, or each of their parts, were divided by their L2 norms.
        parts: columns per part of features from several blocks of a network; empty for one part.
        directions: Ω_c (C, r, H), int8, for "tied-low-rank"; see `daedl.density.directions`.
        sketch: Ω_c S_c (C, r, H), S_c the scatter of class c, which is never stored.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    structure: Structure
    normalized: bool = False
    parts: tuple[int, ...] = ()
    directions: Tensor | None = None
    sketch: Tensor | None = None

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
        directions: Tensor | None = None,
    ) -> "ClassStatistics":
        """Statistics of features (N, H) with class indices (N,).

        Working memory is the statistics and one block of rows in float64, independent of N: O(C H²), or
        O(C H r + H²) if tied.
        """
        _require_matrix(features)
        statistics = cls.empty(
            num_classes, features.shape[1], structure, normalized, parts, directions
        )
        statistics.add(features, targets)
        return statistics

    @classmethod
    def empty(
        cls,
        num_classes: int,
        width: int,
        structure: Structure = "full",
        normalized: bool = False,
        parts: Sequence[int] = (),
        directions: Tensor | None = None,
    ) -> "ClassStatistics":
        """Statistics of no samples, of `width` features, for `add`."""
        look_up(dict.fromkeys(get_args(Structure)), structure, "covariance")
        if (structure == "tied-low-rank") != (directions is not None):
            raise ValueError(
                f"structure is {structure!r} {'without' if directions is None else 'with'} directions; "
                "expected directions for 'tied-low-rank' only: use daedl.density.class_directions"
            )
        shape: tuple[int, ...] = {
            "tied": (width, width),
            "tied-low-rank": (width, width),
            "diagonal": (num_classes, width),
        }.get(structure, (num_classes, width, width))
        return cls(
            counts=torch.zeros(num_classes, dtype=torch.float64),
            means=torch.zeros(num_classes, width, dtype=torch.float64),
            scatter=torch.zeros(shape, dtype=torch.float64),
            structure=structure,
            normalized=normalized,
            parts=tuple(parts) if len(parts) > 1 else (),
            directions=directions,
            sketch=None if directions is None else torch.zeros(directions.shape).double(),
        )

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add features (N, H) with class indices (N,), in place."""
        _require_matrix(features)
        require_targets(targets, self.num_classes, len(features))
        for start in range(0, len(features), _ROWS):
            rows = features[start : start + _ROWS].detach().cpu()
            require_finite(rows, "features", f" from sample {start}")
            labels, order = targets[start : start + _ROWS].cpu().long().sort(stable=True)
            block = rows[order].double()
            self._add(unit_length(block, self.parts) if self.normalized else block, labels)
        if self.structure == "block":
            self.scatter.copy_(self._masked(self.scatter))
        for derived in ("class_parts", "decompositions"):
            self.__dict__.pop(derived, None)

    def _add(self, block: Tensor, labels: Tensor) -> None:
        """Add rows (N, H), float64, with sorted class indices; overwrites `block`.

        For a class with n samples and mean μ so far, and k rows x_i with mean m, the rows are replaced by
        z_i = x_i − m + √(n / (n + k)) (m − μ). Then Σ z_i z_iᵀ is the increase of its scatter.
        """
        present, sizes = torch.unique_consecutive(labels, return_counts=True)
        for c, group in zip(present.tolist(), torch.split(block, sizes.tolist()), strict=True):
            before, added = float(self.counts[c]), len(group)
            mean = group.mean(0)
            shift = mean - self.means[c]
            group.sub_(mean.sub_(shift, alpha=math.sqrt(before / (before + added))))
            self.counts[c] += added
            self.means[c].add_(shift, alpha=added / (before + added))
            if self.structure == "diagonal":
                self.scatter[c] += group.square().sum(0)
            elif self.structure in ("full", "block"):
                self.scatter[c].addmm_(group.T, group)
            elif self.directions is not None and self.sketch is not None:
                self.sketch[c].addmm_(self.directions[c].double() @ group.T, group)
        if self.tied:
            add_symmetric(self.scatter, block)

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
        sketch, added = self._sketch_about(means), other._sketch_about(means)
        sketch = None if sketch is None or added is None else sketch + added
        return replace(self, counts=counts, means=means, scatter=scatter, sketch=sketch)

    @property
    def _kind(self) -> str:
        """Description of everything that merged statistics must have in common."""
        normalized = "normalised" if self.normalized else "unnormalised"
        classes, width = self.means.shape
        parts = f" in parts {self.parts}" if self.parts else ""
        if self.directions is not None:
            digest = hashlib.sha256(self.directions.numpy().tobytes()).hexdigest()
            parts += f" along {self.directions.shape[1]} directions per class ({digest[:8]})"
        return f"{self.structure} statistics of {width} {normalized} features{parts} in {classes} classes"

    def with_samples(self, features: Tensor, targets: Tensor) -> "ClassStatistics":
        """Merge in features (N, H) with class indices (N,) of all processes."""
        added = ClassStatistics.of(
            features,
            targets,
            self.num_classes,
            self.structure,
            self.normalized,
            self.parts,
            self.directions,
        )
        return self.merge(added.across_processes())

    def across_processes(self) -> "ClassStatistics":
        """Statistics of the samples of all processes; unchanged in a single process."""
        counts = sum_across(self.counts)
        means = sum_across(self.counts[:, None] * self.means) / counts.clamp_min(1)[:, None]
        scatter = sum_across(self._scatter_about(means))
        sketch = self._sketch_about(means)
        sketch = None if sketch is None else sum_across(sketch)
        return replace(self, counts=counts, means=means, scatter=scatter, sketch=sketch)

    def reduced(self, structure: Structure) -> "ClassStatistics":
        """The same samples' statistics for another structure, from those that determine it."""
        if structure == self.structure:
            return self
        if structure == "tied" and self.tied:
            return replace(self, structure="tied", directions=None, sketch=None)
        if self.structure != "full" or structure == "tied-low-rank":
            raise ValueError(
                f"can't compute {structure} statistics from {self.structure} ones; expected full ones: "
                "compute them from the features"
            )
        scatter = {
            "tied": lambda: self.scatter.sum(0),
            "diagonal": lambda: self.scatter.diagonal(dim1=1, dim2=2).clone(),
            "block": lambda: self._masked(self.scatter),
        }[structure]()
        return replace(self, scatter=scatter, structure=structure)

    def _masked(self, scatter: Tensor) -> Tensor:
        """`scatter`; for "block" with zeros between features of different parts."""
        if not self.parts:
            return scatter
        owner = torch.repeat_interleave(torch.tensor(self.parts))
        return scatter * (owner[:, None] == owner)

    def _scatter_about(self, means: Tensor) -> Tensor:
        """Scatter about other means m (C, H): S_c + N_c (μ_c − m_c)(μ_c − m_c)ᵀ."""
        shift = self.means - means
        if self.structure == "diagonal":
            return self.scatter + self.counts[:, None] * shift.square()
        weighted = self.counts[:, None] * shift
        if self.tied:
            return self.scatter + weighted.T @ shift
        scatter = torch.baddbmm(self.scatter, weighted[:, :, None], shift[:, None, :])
        return self._masked(scatter) if self.structure == "block" else scatter

    def _sketch_about(self, means: Tensor) -> Tensor | None:
        """Sketch of the scatter about other means m (C, H): Ω_c S_c + N_c Ω_c (μ_c − m_c)(μ_c − m_c)ᵀ."""
        if self.directions is None or self.sketch is None:
            return None
        shift = self.means - means
        along = torch.stack(
            [each.double() @ x for each, x in zip(self.directions, shift, strict=True)]
        )
        return self.sketch + (self.counts[:, None] * along)[:, :, None] * shift[:, None, :]

    @property
    def tied(self) -> bool:
        """Whether one scatter is shared by all classes."""
        return self.structure in ("tied", "tied-low-rank")

    @cached_property
    def class_parts(self) -> ClassParts:
        """Covariances of low rank per class, and the residual scatter, for "tied-low-rank"."""
        if self.directions is None or self.sketch is None:
            raise ValueError(f"{self.structure} statistics have no sketch; expected tied-low-rank")
        return ClassParts.of(self.counts, self.scatter, self.directions, self.sketch)

    def samples(self) -> Tensor:
        """Number of samples per covariance: (C,), or (1,) if tied."""
        return self.counts.sum().reshape(1) if self.tied else self.counts

    def freedom(self) -> Tensor:
        """Degrees of freedom per covariance: (C,), or (1,) if tied."""
        if self.structure == "tied-low-rank":
            return self.class_parts.freedom.reshape(1)
        return self.samples() - (self.num_classes if self.tied else 1)

    def covariances(self) -> Iterator[Tensor]:
        """Yield each unbiased covariance as a new tensor: (H, H), or its diagonal (H,); one if tied.

        The covariance of a class with one sample is zero. For "tied-low-rank" that of the residuals.
        """
        scatters = self.scatter[None] if self.tied else self.scatter
        if self.structure == "tied-low-rank":
            scatters = self.class_parts.residual[None]
        for scatter, freedom in zip(scatters, self.freedom(), strict=True):
            yield scatter / freedom.clamp_min(1)

    @cached_property
    def decompositions(self) -> list[Eigen]:
        """Each covariance, unless diagonal, in its eigenbasis; computed once."""
        parts = self.parts if self.structure == "block" else ()
        # A tied covariance needs all directions: differences of class means lie outside those of the samples.
        samples = repeat(math.inf) if self.tied else self.counts.tolist()
        return [decompose(*each, parts) for each in zip(self.covariances(), samples, strict=False)]

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.means.shape[0]

    @property
    def num_features(self) -> int:
        """Number of features H."""
        return self.means.shape[1]


def _require_matrix(features: Tensor) -> None:
    if features.ndim != 2:
        raise ValueError(
            f"features have shape {tuple(features.shape)}; expected (samples, features): flatten "
            "the features of each sample"
        )
