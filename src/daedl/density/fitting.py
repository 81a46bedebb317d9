"""Fits class-conditional Gaussians to training features, and selects the structure of their covariances."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from daedl.checks import require_whole
from daedl.density.class_parts import have_parts
from daedl.density.directions import affordable_rank, class_directions
from daedl.density.gaussian import GaussianDensity
from daedl.density.leave_one_out import left_out_log_density
from daedl.density.shrinkage import Shrinkage, require_shrinkage
from daedl.density.statistics import ClassStatistics, Structure
from daedl.distributed import every, gather_across, sum_across
from daedl.names import look_up

Covariance = Literal["auto", "full", "tied", "diagonal", "low-rank", "block", "tied-low-rank"]
# Directions per class of a low-rank covariance: on features of digits, 64 per image, more do not increase the
# leave-one-out density, and 8 decrease it (measured).
RANK = 16
# float32, which is twice as fast, is used for scoring if it agrees with float64 to this relative error on
# training features (chosen: far below relevant differences in score).
FLOAT32_AGREEMENT = 1e-5
# Training samples used to measure the agreement, and per candidate for a structure (chosen).
SAMPLE = 2048
# Statistics that would take more memory are no candidates (chosen): 1,000 classes of 512 features need 2 GB.
_CANDIDATE_BYTES = 2**30
# Nor are matrices per class whose decompositions would take minutes (chosen): 10,000 classes of 448 features
# have 9e11, ten of 1,584 features, a backbone's, 4e10.
_CANDIDATE_OPERATIONS = 5e10


def require_density_settings(covariance: Covariance, shrinkage: Shrinkage, rank: int) -> None:
    """Raise unless the settings of a density are valid."""
    look_up(dict.fromkeys(get_args(Covariance)), covariance, "covariance")
    require_shrinkage(shrinkage)
    require_whole("rank", rank, 1, str(RANK))


def fit_gaussians(
    features: Tensor,
    targets: Tensor,
    num_classes: int,
    covariance: Covariance = "full",
    shrinkage: Shrinkage = "auto",
    rank: int = RANK,
    normalize_features: bool = False,
    parts: Sequence[int] = (),
) -> GaussianDensity:
    """Fit to training features (N, H) with class indices (N,) of all processes.

    Features that do not fit in memory are passed to `DensityStream` in chunks.

    Arguments:
        covariance: "full" as in the paper; "tied", one for all classes; "diagonal"; "low-rank", `rank`
            directions per class and the same variance in all others; "block", a full one in which
            features of different parts are uncorrelated, so that the class-conditional log densities of
            the parts are added; "tied-low-rank", one for all classes plus up to `rank` directions per
            class, as many as `affordable_rank` allows; or "auto", the one with the largest mean
            leave-one-out log density of training samples, which requires no OOD data.
        shrinkage: see `daedl.density.shrinkage.shrink`.
        rank: directions per class of a low-rank covariance.
        normalize_features: divide each part of the features by its L2 norm first.
        parts: columns of the features per block of the network, as in `Outputs.parts`; by default one part.
    """
    require_density_settings(covariance, shrinkage, rank)

    def statistics(structure: Structure) -> ClassStatistics:
        along = None
        if structure == "tied-low-rank":
            along = class_directions(
                features, targets, num_classes, rank, normalize_features, parts
            )
        own = ClassStatistics.of(
            features, targets, num_classes, structure, normalize_features, parts, along
        )
        return own.across_processes()

    return fit_statistics(statistics, features, targets, num_classes, covariance, shrinkage, rank)


def fit_statistics(
    statistics: Callable[[Structure], ClassStatistics],
    features: Tensor,
    targets: Tensor,
    num_classes: int,
    covariance: Covariance,
    shrinkage: Shrinkage,
    rank: int,
) -> GaussianDensity:
    """Fit to `statistics` of each of `required_structures`.

    `features` (N, H) with class indices (N,) are some of the samples; they select the structure and dtype.
    """
    (structure, *_) = required_structures(covariance, num_classes, features.shape[1], rank)
    if covariance == "auto":
        density = _select(statistics, features, targets, num_classes, shrinkage, rank)
    else:
        low = rank if covariance == "low-rank" else None
        density = GaussianDensity.fit(statistics(structure), shrinkage, low)
    return _fastest_faithful(density, features)


def refit_gaussians(
    density: GaussianDensity, features: Tensor, targets: Tensor, shrinkage: Shrinkage = "auto"
) -> GaussianDensity:
    """Fit to the samples of `density` and more training features (N, H) with class indices (N,).

    A structure that was selected is kept, because the earlier samples are not stored.
    """
    statistics = density.statistics.with_samples(features, targets)
    merged = GaussianDensity.fit(statistics, shrinkage, density.rank)
    merged.candidates = density.candidates
    return _fastest_faithful(merged, features)


def required_structures(
    covariance: Covariance, num_classes: int, width: int, rank: int
) -> tuple[Structure, ...]:
    """Structures of the statistics from which a density with `covariance` is fitted.

    For "auto" those with affordable memory and time, from which the statistics of all candidates follow.
    """
    if covariance == "low-rank":
        return ("full",)
    if covariance != "auto":
        return (covariance,)
    in_memory = 8 * num_classes * width**2 <= _CANDIDATE_BYTES
    if in_memory and num_classes * width**3 <= _CANDIDATE_OPERATIONS:
        return ("full",)
    if 8 * width**2 > _CANDIDATE_BYTES:
        return ("diagonal",)
    low_rank = affordable_rank(rank, num_classes, width) > 0
    return ("tied-low-rank" if low_rank else "tied", "diagonal")


def _select(
    statistics: Callable[[Structure], ClassStatistics],
    features: Tensor,
    targets: Tensor,
    num_classes: int,
    shrinkage: Shrinkage,
    rank: int,
) -> GaussianDensity:
    """Fit every structure, and return the density with the largest mean leave-one-out log density."""
    number = int(sum_across(torch.tensor(len(features))))
    some = every(max(1, number // SAMPLE))
    sample, labels = features[some].cpu(), targets[some].cpu().long()
    figures: dict[str, float] = {}
    for name, computed in _candidates(statistics, num_classes, features.shape[1], rank):
        density = GaussianDensity.fit(computed, shrinkage, rank if name == "low-rank" else None)
        left_out = gather_across(left_out_log_density(density, sample, labels, computed))
        figure = float(left_out.mean())
        if not figures or figure > max(figures.values()):
            best = density
        if math.isfinite(figure):  # few samples may not determine it
            figures[name] = figure
    best.candidates = figures
    return best


def _candidates(
    statistics: Callable[[Structure], ClassStatistics], num_classes: int, width: int, rank: int
) -> Iterator[tuple[str, ClassStatistics]]:
    """Yield the structures to choose from, and their statistics.

    Where no class has enough samples for directions of its own, "tied-low-rank" is equal to "tied".
    """
    for required in required_structures("auto", num_classes, width, rank):
        computed = statistics(required)
        along = computed.directions
        if along is None or bool(have_parts(computed.counts, along.shape[1]).any()):
            yield required, computed
        if required == "tied-low-rank":
            yield "tied", computed.reduced("tied")
        if required == "full":
            if rank < width - 1:  # otherwise equal to full
                yield "low-rank", computed
            yield "tied", computed.reduced("tied")
            yield "diagonal", computed.reduced("diagonal")
            if computed.parts:
                yield "block", computed.reduced("block")


def _fastest_faithful(density: GaussianDensity, features: Tensor) -> GaussianDensity:
    """Return the density in float32 if that agrees with float64 on `features`, else unchanged."""
    if features.dtype == torch.float64:
        return density
    sample = features[:: max(1, len(features) // SAMPLE)].cpu()
    single = density.cast(torch.float32)
    exact = density(sample)
    error = (single(sample) - exact).abs().max()
    # All processes must select the same dtype, otherwise their densities differ.
    worst = gather_across((error / exact.abs().median()).reshape(1)).max()
    return single if worst <= FLOAT32_AGREEMENT else density
