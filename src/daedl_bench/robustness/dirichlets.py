"""Dirichlet distributions with concentrations of any size: every quantity must be finite and in its range."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from daedl.dirichlet import Dirichlet
from daedl_bench.robustness._place import Figure, Place

NUMBER = 1_000_000
CHUNK = 20_000
CLASSES = (2, 3, 10, 100)
# ln α is uniform up to these absolute values.
SPREADS = (0.1, 1.0, 10.0, 80.0, 700.0)
ROUNDING = 1e-4

RANGES: dict[str, Callable[[Dirichlet], tuple[Tensor, float, float]]] = {
    "mean": lambda d: (d.mean, 0, 1),
    "sum of the mean": lambda d: (d.mean.sum(-1), 1, 1),
    "log precision": lambda d: (d.log_precision - d.log_alpha.amax(-1), 0, math.log(d.num_classes)),
    "variance": lambda d: (d.variance, 0, 0.25),
    "entropy of the mean": lambda d: (d.entropy_of_mean, 0, math.log(d.num_classes)),
    "expected entropy": lambda d: (d.expected_entropy, 0, math.log(d.num_classes)),
    "mutual information": lambda d: (d.mutual_information, 0, math.log(d.num_classes)),
}


def measure(place: Place) -> list[Figure]:
    """Counts the distributions with a value that is not finite or outside of its range."""
    generator, done, wrong = torch.Generator().manual_seed(0), 0, 0
    wanted = place.count(NUMBER)
    while done < wanted:
        kind = done // CHUNK
        size = min(CHUNK, wanted - done)
        spread = SPREADS[kind % len(SPREADS)]
        classes = CLASSES[kind // len(SPREADS) % len(CLASSES)]
        drawn = torch.rand(size, classes, generator=generator, dtype=torch.float64)
        # Single precision has a range of 10^±38.
        double = spread > 80 or kind % 2 == 1
        log_alpha = spread * (2 * drawn - 1)
        wrong += int(_wrong(log_alpha if double else log_alpha.float()).sum())
        done += size
    return [
        Figure("distributions", done),
        Figure("values that are not finite or out of range", wrong, 0),
    ]


def _wrong(log_alpha: Tensor) -> Tensor:
    """Whether any quantity of each distribution is wrong."""
    distribution = Dirichlet(log_alpha)
    wrong = torch.zeros(len(log_alpha), dtype=torch.bool)
    for quantity in RANGES.values():
        values, low, high = quantity(distribution)
        valid = (values >= low - ROUNDING) & (values <= high + ROUNDING)  # False for NaN
        wrong |= ~valid.reshape(len(values), -1).all(-1)
    finite = torch.isfinite(distribution.kl(Dirichlet(log_alpha.flip(-1))))
    return wrong | ~finite if log_alpha.abs().max() <= 80 else wrong
