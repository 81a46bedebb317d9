"""Directions per class, along which the covariance of a class is compared with the shared one.

They are fixed before the statistics are accumulated, so that these are sums over samples: they can be
merged, and a sample can be removed. A few samples per class, the pilot, suffice to point them towards the
largest variances of the class.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from daedl.density.statistics import ClassStatistics, unit_length
from daedl.distributed import gather_across, positions, sum_across

# Samples per class in the pilot (chosen).
PILOT = 16
# Steps of subspace iteration on the pilot (chosen; a third changes densities by less than 0.1 on average).
_STEPS = 2
# Values of the directions of all classes (chosen): 3 directions for 1,000 classes of 2,048 features. The
# sketches have as many, and take 25 MB in a model file.
_VALUES = 6.5e6


def affordable_rank(rank: int, num_classes: int, width: int) -> int:
    """Number of directions per class: at most `rank`, H − 1, and 6.5 million values in total."""
    return min(rank, width - 1, int(_VALUES / (num_classes * width)))


def class_directions(
    features: Tensor,
    targets: Tensor,
    num_classes: int,
    rank: int,
    normalized: bool = False,
    parts: Sequence[int] = (),
) -> Tensor:
    """Directions Ω_c (C, r, H), int8, from the first samples per class of features (N, H) of all processes.

    Samples are assigned to processes round-robin, as in `daedl.fit`, so that the first ones do not depend on
    the number of processes. The number r is `affordable_rank`, at most `rank`.
    Ω_c has the signs of an orthonormal basis of the leading eigenvectors of Σ⁻¹S_c, directions in which the
    pilot of the class varies most relative to that of all, by subspace iteration from random signs: factors
    that all classes share may have more variance. Signs take an eighth of a byte in a file, and lose little:
    the cosine between a vector and its signs is 0.8 on average. Classes without two samples keep random ones.
    """
    rank = affordable_rank(rank, num_classes, features.shape[1])
    if rank < 1:
        raise ValueError(
            f"a direction for each of {num_classes} classes of {features.shape[1]} features has "
            f"{num_classes * features.shape[1]} values; expected fewer, and at least 2 features: use "
            "covariance='tied'"
        )
    every = _pilot(targets.cpu().long())
    present, sizes = torch.unique_consecutive(targets.cpu()[every], return_counts=True)
    every = every.to(features.device)
    pilots = list(zip(present.tolist(), torch.split(every, sizes.tolist()), strict=True))

    def points(rows: Tensor) -> Tensor:
        chosen = features[rows].detach().cpu().double()
        return unit_length(chosen, tuple(parts)) if normalized else chosen

    statistics = ClassStatistics.of(
        features[every], targets[every.to(targets.device)], num_classes, "tied", normalized, parts
    ).across_processes()
    means, inverse = statistics.means, _inverse(statistics)
    shape = (num_classes, rank, features.shape[1])
    generator = torch.Generator().manual_seed(0)
    directions = torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) * 2 - 1
    for _ in range(_STEPS):
        sketch = torch.zeros(shape, dtype=torch.float64)
        for c, rows in pilots:
            deviations = points(rows) - means[c]
            sketch[c] = (directions[c].double() @ deviations.T) @ deviations
        sketch = sum_across(sketch) @ inverse
        for c in (statistics.counts > 1).nonzero()[:, 0].tolist():
            signs = torch.linalg.qr(sketch[c].T).Q.T.sign().to(torch.int8)
            directions[c] = torch.where(signs == 0, directions[c], signs)
    return directions


def _pilot(targets: Tensor) -> Tensor:
    """Indices of this process's samples among the first `PILOT` per class of all, sorted by class."""
    own = _first(targets)
    places = positions(own)
    all_places, order = gather_across(places).sort()
    labels = gather_across(targets[own])[order]
    return own[torch.isin(places, all_places[_first(labels)])]


def _first(targets: Tensor) -> Tensor:
    """Indices of the first `PILOT` samples per class, sorted by class."""
    labels, order = targets.sort(stable=True)
    sizes = torch.unique_consecutive(labels, return_counts=True)[1].tolist()
    return torch.cat([rows[:PILOT] for rows in torch.split(order, sizes)])


def _inverse(statistics: ClassStatistics) -> Tensor:
    """Inverse (H, H) of the tied covariance, shrunk by H / (H + ν) for ν degrees of freedom (chosen)."""
    (covariance,), width = statistics.covariances(), statistics.num_features
    amount = width / (width + float(statistics.freedom().clamp_min(0)))
    scale = float(covariance.diagonal().mean())
    covariance *= 1 - amount
    covariance.diagonal().add_(amount * scale or 1.0)  # constant features have any directions
    return torch.cholesky_inverse(torch.linalg.cholesky(covariance))
