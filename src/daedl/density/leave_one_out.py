"""The density of each training sample as if it had not been one.

A Gaussian fitted to a sample is biased towards it: in many dimensions training samples look denser than
any new ones ever will. Leaving each out of its own fit takes that bias away, at no cost: removing one
sample changes a covariance by a matrix of rank one.
"""

import torch
from torch import Tensor

from daedl.density.gaussian import GaussianDensity
from daedl.density.shrinkage import shrunk_covariances


def left_out_log_density(density: GaussianDensity, features: Tensor, targets: Tensor) -> Tensor:
    """Log density (N,), float64, of training features (N, H) with class indices (N,).

    `density` was fitted to them, and perhaps to others. For a full covariance without shrinkage it is
    exactly what fitting N times would give; the shrinkage is held, and so are the other classes'
    distances under a tied covariance.
    """
    features, targets = features.to(density.means.device), targets.to(density.means.device)
    counts, total = density.counts, density.counts.sum()
    every = density.class_log_densities(features) + (total / (total - 1)).log()
    n = counts[targets]
    if density.structure == "diagonal":
        change = _diagonal_change(density, features, targets)
    else:
        change = _rank_one_change(density, every, targets)
    # With the sample goes its part in the class's weight; a class of one sample goes altogether.
    without = every.gather(1, targets[:, None])[:, 0] + change + ((n - 1) / n).log()
    return every.scatter(1, targets[:, None], without[:, None]).logsumexp(-1)


def _factors(density: GaussianDensity, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(a, b, g), each (N,): without the sample at distance d from its mean,

        Σ becomes a Σ − b d dᵀ,   d becomes g d.

    From fewer than three samples no covariance is left: Σ is then held.
    """
    n = density.counts[targets]
    tied = density.structure == "tied"
    freedom = density.counts.sum() - len(density.counts) if tied else n - 1
    amount = density.amount.expand(len(density.counts))[targets]
    enough = (freedom > 1) & (n > 1)
    a = torch.where(enough, freedom / (freedom - 1).clamp_min(1), 1.0)
    b = (1 - amount) * n / ((n - 1).clamp_min(1) * (freedom - 1).clamp_min(1))
    return a, torch.where(enough, b, 0.0), n / (n - 1).clamp_min(1)


def _rank_one_change(density: GaussianDensity, every: Tensor, targets: Tensor) -> Tensor:
    """What leaving a sample out adds to its class's log density, (N,).

    With m the squared distance: m becomes g² m / (a − b m), ln |Σ| gains H ln a + ln(1 − b m / a).
    """
    a, b, g = _factors(density, targets)
    own = every.gather(1, targets[:, None])[:, 0]
    total = density.counts.sum()
    m = 2 * (density.constant[targets] + (total / (total - 1)).log() - own)
    # Rounding aside, b m < a: a sample can't lie further from its own mean than it can pull it.
    left = (1 - b * m / a).clamp_min(1e-12)
    width = density.means.shape[1]
    return 0.5 * (m - g.square() * m / (a * left) - width * a.log() - left.log())


def _diagonal_change(density: GaussianDensity, features: Tensor, targets: Tensor) -> Tensor:
    """The same for variances v (N, H), each of which becomes a v − b d²."""
    a, b, g = (x[:, None] for x in _factors(density, targets))
    variances = torch.stack(list(shrunk_covariances(density.statistics, density.shrunk)))
    v = variances.to(density.means.device)[targets]
    squared = (features.double() - density.means[targets]).square()
    left = (a * v - b * squared).clamp_min(1e-12 * v)
    return 0.5 * (squared / v - g.square() * squared / left - (left / v).log()).sum(1)
