"""Gaussian discriminant analysis: one Gaussian per class, weighted by class frequency."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Literal, cast

import msgspec
import torch
from torch import Tensor, nn

from daedl.density.distances import (
    DiagonalDistances,
    Distances,
    FullDistances,
    LowRankDistances,
    TiedDistances,
    TiedLowRankDistances,
)
from daedl.density.shrinkage import Shrinkage, Shrunk, shrink, shrunk_covariances, shrunk_spectra
from daedl.density.statistics import ClassStatistics, unit_length
from daedl.density.tensors import as_stored, restored, stored

DISTANCES: dict[str, Callable[..., Distances]] = {
    "full": FullDistances,
    "tied": TiedDistances,
    "diagonal": DiagonalDistances,
    "block": FullDistances,
    "tied-low-rank": TiedLowRankDistances,
}
# Values computed per block of rows; limits the working memory (chosen).
_ELEMENTS = 2**23


class GaussianSettings(msgspec.Struct, frozen=True):
    """Schema of `GaussianDensity.settings`; files of earlier versions omit settings that have defaults."""

    covariance: Literal["full", "tied", "diagonal", "block", "low-rank", "tied-low-rank"]
    dtype: Literal["float32", "float64"]
    rank: Annotated[int, msgspec.Meta(ge=1)] | None = None
    normalized: bool = False
    parts: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    candidates: dict[str, float] = {}


class MissingClassError(ValueError):
    """Classes without a training sample."""

    def __init__(self, classes: Sequence[int | str], samples: int) -> None:
        self.classes, self.samples = classes, samples
        super().__init__(
            f"no training sample of class {', '.join(map(str, classes))} among {samples}; expected samples "
            "of every class: add samples, or build the network with fewer classes and renumber the labels"
        )

    def named(self, names: Sequence[str] | None) -> "MissingClassError":
        """The error with the names of the classes, if they have names."""
        classes = [repr(names[int(each)]) for each in self.classes] if names else self.classes
        return MissingClassError(classes, self.samples)


class GaussianDensity(nn.Module):
    """ln p(f) = logsumexp_c (ln ω_c + ln N(f; μ_c, Σ_c)), with ω_c = N_c / N.

    The paper's Section 3.3. Statistics and shrinkage are stored, so that the density can be saved and
    merged with more samples; the factors used for scoring are derived from them.

    Attributes:
        rank: number of directions per class of a low-rank covariance; None for another structure.
        normalized: whether features, or each of their parts, are divided by their L2 norms first
            (Müller and Hein, Mahalanobis++, ICML 2025): norms vary with the class and the contrast of an
            image, so that they hide how far a feature is from the training data.
        parts: columns per part of features from several blocks of a network; empty for one part.
        candidates: mean leave-one-out log density per candidate, if the structure was selected by it.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor
    directions: Tensor
    sketch: Tensor
    amount: Tensor
    scale: Tensor
    condition: Tensor
    effective_rank: Tensor
    center: Tensor
    constant: Tensor

    def __init__(
        self,
        statistics: ClassStatistics,
        shrunk: Shrunk,
        dtype: torch.dtype = torch.float64,
        rank: int | None = None,
        candidates: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.dtype, self.rank, self.normalized = dtype, rank, statistics.normalized
        self.parts = statistics.parts
        self.candidates = dict(candidates or {})
        self._statistics = statistics.structure
        for name, tensor in stored(statistics).items():
            self.register_buffer(name, tensor)
        for name in ("amount", "scale", "condition", "effective_rank"):
            self.register_buffer(name, getattr(shrunk, name))
        shares = statistics.counts / statistics.counts.sum()
        # Centring avoids cancellation if all features have a large common offset.
        center = shares @ statistics.means
        centered = statistics.means - center
        # A class of few samples varies in few directions, and equally in all others once it is shrunk.
        spectra = shrunk_spectra(statistics, shrunk, rank)
        if spectra is None:
            kind = DISTANCES[self.structure]
            if self.structure == "tied-low-rank":
                freedom = (statistics.counts - 1).clamp_min(1)
                kind = partial(kind, factors=statistics.class_parts.factors, freedom=freedom)
            self.distances = kind(centered, shrunk_covariances(statistics, shrunk), dtype)
        else:
            self.distances = LowRankDistances(centered, spectra, dtype)
        constant = shares.log() + self.distances.log_volume
        constant -= 0.5 * statistics.num_features * math.log(2 * math.pi)
        # Centred features are clamped to ± this (10^8 standard deviations): squares stay finite in float32.
        self.max_offset = 1e8 * math.sqrt(statistics.num_features * float(shrunk.scale.max()))
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("constant", constant, persistent=False)

    @classmethod
    def fit(
        cls,
        statistics: ClassStatistics,
        shrinkage: Shrinkage = "auto",
        rank: int | None = None,
    ) -> "GaussianDensity":
        """Fit to the statistics of training features; see `daedl.density.shrinkage.shrink`.

        `rank` selects low-rank covariances, which require full statistics; it is at most H − 1.
        """
        if rank is not None and (rank < 1 or statistics.structure != "full"):
            raise ValueError(
                f"rank is {rank} with {statistics.structure} statistics; expected at least 1, with full "
                "statistics: use covariance='low-rank', rank=16"
            )
        missing = (statistics.counts == 0).nonzero().flatten().tolist()
        if missing:
            raise MissingClassError(missing, int(statistics.counts.sum()))
        # With H directions nothing would remain for the isotropic part.
        rank = None if rank is None else min(rank, statistics.num_features - 1) or None
        statistics = as_stored(statistics)
        return cls(statistics, shrink(statistics, shrinkage, rank), rank=rank)

    @property
    def structure(self) -> str:
        """Structure of the covariances: "full", "tied", "diagonal", "block" or "low-rank"."""
        return self._statistics if self.rank is None else "low-rank"

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable settings that rebuild this density together with `state_dict()`."""
        return {
            "covariance": self.structure,
            "rank": self.rank,
            "normalized": self.normalized,
            "parts": list(self.parts),
            "candidates": self.candidates,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    @classmethod
    def restore(
        cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> "GaussianDensity":
        """Rebuild a density from its `state_dict()` and `settings()`."""
        said = msgspec.convert(settings, GaussianSettings)
        structure = "full" if said.covariance == "low-rank" else said.covariance
        statistics = restored(tensors, structure, said.normalized, said.parts)
        shrunk = Shrunk(*(tensors[each.name] for each in fields(Shrunk)))
        return cls(statistics, shrunk, getattr(torch, said.dtype), said.rank, said.candidates)

    @property
    def statistics(self) -> ClassStatistics:
        """Statistics of the samples that the density was fitted to, on the CPU."""
        tensors = {name: each.cpu() for name, each in self.named_buffers(recurse=False)}
        return restored(tensors, self._statistics, self.normalized, self.parts)

    @property
    def shrunk(self) -> Shrunk:
        """Shrinkage and spectrum of each covariance, on the CPU."""
        return Shrunk(
            self.amount.cpu(), self.scale.cpu(), self.condition.cpu(), self.effective_rank.cpu()
        )

    def cast(self, dtype: torch.dtype) -> "GaussianDensity":
        """Density with the same statistics that scores in another dtype."""
        if self.dtype != torch.float64:  # its factors are rounded
            again = GaussianDensity(self.statistics, self.shrunk, dtype, self.rank, self.candidates)
            return again.to(self.means.device)
        again = copy.copy(self)
        again._buffers = {**self._buffers}
        again._modules = {**self._modules, "distances": self.distances.cast(dtype)}
        again.dtype = dtype
        return again

    def forward(self, features: Tensor) -> Tensor:
        """Log density (B,), float64, of features (B, H)."""
        joint = self.class_log_densities(features)
        return joint[:, 0] if joint.shape[1] == 1 else joint.logsumexp(-1)

    def class_log_densities(self, features: Tensor) -> Tensor:
        """ln ω_c + ln N(f; μ_c, Σ_c), (B, C), float64, of features (B, H)."""
        return torch.add(self.constant, self.squared_distances(features), alpha=-0.5)

    def squared_distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distances (B, C), float64, of features (B, H) to the class means."""
        width = self.means.shape[1]
        if features.ndim != 2 or features.shape[1] != width:
            raise ValueError(
                f"features have shape {tuple(features.shape)} but the density was fitted on "
                f"{width} columns; pass outputs of the same network"
            )
        return self._distances(features.to(self.center.device), self.normalized)

    def mean_log_density(self, statistics: ClassStatistics) -> float:
        """Mean of ln ω_y + ln N(f; μ_y, Σ_y) over the samples (f, y) that `statistics` summarise.

        It depends on the samples of class c only through their mean m_c and covariance S_c:
        ln ω_c − ½ ln |2πΣ_c| − ½ (tr Σ_c⁻¹S_c + (m_c − μ_c)ᵀ Σ_c⁻¹ (m_c − μ_c)).
        """
        if statistics.tied:
            own = self._distances(statistics.means, normalize=False).diagonal()
            shares = statistics.counts / statistics.counts.sum()
            terms = self.constant.cpu() - 0.5 * own.cpu()
            return float((shares * terms).sum()) - 0.5 * self._mean_spread(statistics)
        means, total = self.means.to(statistics.means), 0.0
        for c, count in enumerate(statistics.counts.tolist()):
            if count == 0:
                continue
            root = _root(statistics.scatter[c] / count)
            points = torch.cat([means[c] + root, statistics.means[c : c + 1]])
            distance = float(self._distances(points, normalize=False)[:, c].sum())
            total += count * (float(self.constant[c]) - 0.5 * distance)
        return total / float(statistics.counts.sum())

    def _mean_spread(self, statistics: ClassStatistics) -> float:
        """Mean squared distance that samples have about the mean of their class, from tied statistics.

        What the directions of a class explain of its own scatter, which is not stored, is estimated: as
        what they explain of N_c and of its share of R.
        """
        distances, counts = cast(TiedDistances, self.distances), statistics.counts
        total = distances.trace(_root(statistics.scatter))
        if isinstance(distances, TiedLowRankDistances):
            parts, freedom = statistics.class_parts, (counts - 1).clamp_min(0)
            shares = distances.explained(_root(parts.residual)).cpu() @ freedom / freedom.sum()
            total -= float(shares + distances.explained(parts.factors).sum().cpu())
        return total / float(counts.sum())

    def _distances(self, features: Tensor, normalize: bool) -> Tensor:
        """Squared distances (B, C), float64, in blocks."""
        blocks = []
        for block in torch.split(features, max(1, _ELEMENTS // self.distances.elements)):
            centered = (unit_length(block, self.parts) if normalize else block) - self.center
            centered = centered.clamp_(-self.max_offset, self.max_offset).to(self.dtype)
            # The constant is float64 whatever the dtype of the products is.
            blocks.append(self.distances(centered).to(self.constant))
        return torch.cat(blocks)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move to another device, but keep dtypes if the classifier is converted to float or half.

        On a device without float64 (Apple's MPS) the density stays on its current device.
        """
        try:
            device = fn(self.constant).device
        except TypeError:
            return self
        return super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]


def _root(matrix: Tensor) -> Tensor:
    """A square root Q of a positive semidefinite matrix QᵀQ (H, H), or of a diagonal one (H,)."""
    values, vectors = torch.linalg.eigh(matrix if matrix.ndim == 2 else matrix.diag())
    root: Tensor = (vectors * values.clamp_min(0).sqrt()).T
    return root
