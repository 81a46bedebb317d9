"""Shrinkage of singular covariances."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from daedl.density.eigen import FEW
from daedl.density.statistics import ClassStatistics

# Covariances with a larger condition number count as singular: float32 features have about seven digits,
# so a variance below 1e-10 of the largest is rounding error (chosen).
MAX_CONDITION = 1e10
# The mean of equal float64 features differs from them by rounding: a relative spread below this counts as
# zero (chosen, a thousand times the rounding error).
_ROUNDING = 1e-12
# Covariances with a smaller ratio of smallest to largest eigenvalue can't be factorised (float64).
_LEAST_SHARE = 1e-15
# Avoids division by a spread of zero.
_TINY = 1e-300

Shrinkage = Literal["auto"] | float


@dataclass(frozen=True)
class Shrunk:
    """Shrinkage of K covariances S (K = C, or 1 if tied); every field is (K,).

    Σ = (1 − amount) S + amount · scale · I.

    Attributes:
        amount: shrinkage, from 0 (none) to 1.
        scale: mean variance, tr S / H.
        condition: condition number of Σ.
        effective_rank: exp of the entropy of the normalised eigenvalues of S (Roy and Vetterli, 2007).
    """

    amount: Tensor
    scale: Tensor
    condition: Tensor
    effective_rank: Tensor


def require_shrinkage(shrinkage: Shrinkage) -> None:
    """Raise unless `shrinkage` is "auto" or a number from 0 to 1."""
    number = isinstance(shrinkage, int | float) and 0 <= shrinkage <= 1
    if shrinkage != "auto" and not number:
        raise ValueError(
            f"shrinkage is {shrinkage!r}; expected 'auto' or a number from 0 to 1: use 'auto'"
        )


def shrink(statistics: ClassStatistics, shrinkage: Shrinkage, rank: int | None = None) -> Shrunk:
    """Compute the shrinkage of each covariance, which is of low rank plus a multiple of I if `rank` is set.

    "auto" does not shrink invertible covariances (the paper's formula). Singular ones are shrunk: a matrix
    by the oracle approximating shrinkage (OAS), a diagonal, which is singular only with constant features,
    by 1 / (N_c + 1), the weight of one sample. A matrix that becomes singular when one sample is left out
    counts as singular. A number is applied to every class. Covariances of low rank are shrunk before the
    smaller eigenvalues are replaced by their mean, so "auto" shrinks them only if that mean is zero.
    """
    require_shrinkage(shrinkage)
    spectra = _spectra(statistics)
    scale = spectra.mean(1)
    magnitude = statistics.means.square().mean(1)
    varies = scale > _ROUNDING**2 * (magnitude.amax() if statistics.tied else magnitude)
    if not varies.any():
        raise ValueError(
            "the features are constant within every class, so they have no density; expected variation "
            "within some class: pass at least two different samples of it, and check the network"
        )
    # A class with one distinct sample has no spread: use the mean of the others.
    spectra = torch.where(varies[:, None], spectra, 0.0)
    scale = torch.where(varies, scale, scale[varies].mean())
    if shrinkage == "auto":
        used = _truncated(spectra, rank)
        singular = used[:, 0] * MAX_CONDITION < used[:, -1].clamp_min(_TINY)
        samples = statistics.samples()
        diagonal = statistics.structure == "diagonal"
        block = statistics.structure == "block" and bool(statistics.parts)
        if not diagonal:
            width = max(statistics.parts) if block else statistics.num_features
            singular |= statistics.freedom() <= (width if rank is None else rank + 1)
        enough = 1 / (samples + 1) if diagonal else _oracle_amount(spectra, samples)
        amount = torch.where(singular, enough, 0.0)
    else:
        amount = torch.full_like(scale, float(shrinkage))
    shrunk = _truncated((1 - amount)[:, None] * spectra + (amount * scale)[:, None], rank)
    share = shrunk[:, 0] / shrunk[:, -1].clamp_min(_TINY)
    if (share <= _LEAST_SHARE).any():
        worst = int(share.argmin())
        raise ValueError(
            f"the covariance of class {worst} is singular ({int(statistics.samples()[worst])} samples, "
            f"{statistics.num_features} features) with shrinkage {shrinkage}; expected an invertible "
            "one: use shrinkage='auto' or a larger number"
        )
    shares = spectra / spectra.sum(1, keepdim=True).clamp_min(_TINY)
    entropy = -(shares * shares.clamp_min(_TINY).log()).sum(1)
    return Shrunk(amount, scale, shrunk[:, -1] / shrunk[:, 0], entropy.exp())


def shrunk_covariances(statistics: ClassStatistics, shrunk: Shrunk) -> Iterator[Tensor]:
    """Yield Σ of each class: (H, H), or its diagonal (H,)."""
    for covariance, amount, scale in zip(
        statistics.covariances(), shrunk.amount, shrunk.scale, strict=True
    ):
        shrunken = (1 - amount) * covariance
        diagonal = shrunken if shrunken.ndim == 1 else shrunken.diagonal()
        diagonal += amount * scale
        yield shrunken


def shrunk_spectra(
    statistics: ClassStatistics, shrunk: Shrunk, rank: int | None
) -> list[tuple[Tensor, Tensor, Tensor]] | None:
    """The `rank` largest eigenvalues of Σ of each class, their eigenvectors, and the mean of the others.

    For a rank of None those that differ from the others, or None if most do.
    """
    few = _largest_rank(statistics)
    if rank is None and few is None:
        return None
    found = []
    for eigen, amount, scale in zip(
        statistics.decompositions, shrunk.amount, shrunk.scale, strict=True
    ):
        values, vectors = eigen.leading(rank or few or 1)
        rest = (eigen.values.sum() - values.sum()).clamp_min(0) / (len(vectors) - len(values))
        kept, added = 1 - amount, amount * scale
        found.append((kept * values + added, vectors, kept * rest + added))
    return found


def _spectra(statistics: ClassStatistics) -> Tensor:
    """Eigenvalues (K, H), ascending, of each covariance."""
    if statistics.structure == "diagonal":
        return torch.stack(list(statistics.covariances())).sort(1).values
    if statistics.structure == "tied-low-rank":  # nothing needs its eigenvectors
        (covariance,) = statistics.covariances()
        values: Tensor = torch.linalg.eigvalsh(covariance)
        return values.clamp_min(0)[None]
    return torch.stack([each.spectrum() for each in statistics.decompositions])


def _largest_rank(statistics: ClassStatistics) -> int | None:
    """Upper bound of the ranks of the covariances of all classes; None if it is above `FEW` of H."""
    if statistics.structure not in ("full", "block"):
        return None
    width = statistics.num_features
    parts = (statistics.structure == "block" and statistics.parts) or (width,)
    most = max(int(statistics.counts.max()) - 1, 1)
    rank = sum(min(most, each) for each in parts)
    return rank if rank <= FEW * width else None


def _truncated(spectra: Tensor, rank: int | None) -> Tensor:
    """Spectra (K, H), ascending, in which all but the `rank` largest values are replaced by their mean."""
    if rank is None:
        return spectra
    rest = spectra[:, :-rank]
    return torch.cat([rest.mean(1, keepdim=True).expand_as(rest), spectra[:, -rank:]], 1)


def _oracle_amount(spectra: Tensor, samples: Tensor) -> Tensor:
    """Oracle approximating shrinkage (K,) (Chen et al., 2010), in the form used by scikit-learn.

    ρ = min(1, (tr S² + tr² S) / ((n + 1) (tr S² − tr² S / H))).
    """
    trace, trace_of_square = spectra.sum(1), spectra.square().sum(1)
    above = trace_of_square + trace.square()
    below = (samples + 1) * (trace_of_square - trace.square() / spectra.shape[1])
    return torch.where(below > 0, above / below.clamp_min(_TINY), 1.0).clamp_max(1)
