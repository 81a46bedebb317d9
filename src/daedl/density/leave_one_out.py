"""Leave-one-out density of training samples.

In-sample densities are biased: in high dimensions they are larger than those of new samples. Leaving each
sample out of its own fit removes this bias at little cost, because removing one sample is a rank-one
update of the covariance.
"""

import torch
from torch import Tensor

from daedl.density.gaussian import GaussianDensity
from daedl.density.shrinkage import shrunk_covariances


def left_out_log_density(density: GaussianDensity, features: Tensor, targets: Tensor) -> Tensor:
    """Log density (N,), float64, of training features (N, H) with class indices (N,).

    `density` was fitted to these samples, and possibly to others. For full covariances without shrinkage
    the result equals N separate fits. The shrinkage is kept fixed, and with a tied covariance so are the
    distances to the other classes.
    """
    features, targets = features.to(density.means.device), targets.to(density.means.device)
    counts, total = density.counts, density.counts.sum()
    every = density.class_log_densities(features) + (total / (total - 1)).log()
    n = counts[targets]
    if density.structure == "diagonal":
        change = _diagonal_change(density, features, targets)
    else:
        change = _rank_one_change(density, every, targets)
    # The class weight decreases from n to n − 1 samples; a class of one sample vanishes.
    without = every.gather(1, targets[:, None])[:, 0] + change + ((n - 1) / n).log()
    return every.scatter(1, targets[:, None], without[:, None]).logsumexp(-1)


def _factors(density: GaussianDensity, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (a, b, g), each (N,), of removing a sample with deviation d from its class mean:

        Σ becomes a Σ − b d dᵀ,   d becomes g d.

    With fewer than three samples the remaining covariance is undefined: Σ is kept fixed.
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
    """Change (N,) of the log density of the sample's class when the sample is left out.

    With m the squared distance: m becomes g² m / (a − b m), ln |Σ| increases by H ln a + ln(1 − b m / a).
    """
    a, b, g = _factors(density, targets)
    own = every.gather(1, targets[:, None])[:, 0]
    total = density.counts.sum()
    m = 2 * (density.constant[targets] + (total / (total - 1)).log() - own)
    # b m < a up to rounding: the distance of a sample from a mean that includes it is bounded.
    left = (1 - b * m / a).clamp_min(1e-12)
    width = density.means.shape[1]
    return 0.5 * (m - g.square() * m / (a * left) - width * a.log() - left.log())


def _diagonal_change(density: GaussianDensity, features: Tensor, targets: Tensor) -> Tensor:
    """`_rank_one_change` for variances v (N, H), each of which becomes a v − b d²."""
    a, b, g = (x[:, None] for x in _factors(density, targets))
    variances = torch.stack(list(shrunk_covariances(density.statistics, density.shrunk)))
    v = variances.to(density.means.device)[targets]
    squared = (features.double() - density.means[targets]).square()
    left = (a * v - b * squared).clamp_min(1e-12 * v)
    return 0.5 * (squared / v - g.square() * squared / left - (left / v).log()).sum(1)
