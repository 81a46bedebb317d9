"""How many observations the prediction of a network is worth, fitted to held-out data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from daedl.nig import NIG

# Bounds of n, τ and κ (chosen). From n = 2 on the prediction has a variance; κ of 1 is the least for which
# the evidence grows with s, and with 16 the marginal has no weight within the range of the training data.
BOUNDS = ((4.0, 1e4), (1e-3, 1e3), (1.0, 16.0))
# Held-out samples that the defaults are worth (chosen): few samples can't determine three parameters.
WEIGHT = 4.0


@dataclass(frozen=True)
class Evidence:
    """Size of the evidence per target.

    Attributes:
        counts: n, by which the counts ν and α of one observation are multiplied.
        noise: τ, by which the variance is multiplied.
        sharpness: κ of the weight (1 − s)^κ of the marginal.
    """

    counts: tuple[float, ...]
    noise: tuple[float, ...]
    sharpness: tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(0 < each < math.inf for each in (*self.counts, *self.noise)):
            raise ValueError(f"evidence is {self}; expected finite factors above 0")

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable attributes."""
        return asdict(self)

    @classmethod
    def restore(cls, settings: Mapping[str, Any]) -> "Evidence":
        """Rebuilds it from `settings()`."""
        return msgspec.convert({name: settings[name] for name in cls.__annotations__}, cls)

    def posterior(self, prior: NIG, unit: NIG, log_score: Tensor) -> NIG:
        """The marginal `prior` (D,) with weight (1 − s)^κ and the evidence `unit` (B, D) with s n.

        `log_score` is ln s, (B, 1).
        """
        logs = (unit.gamma.new_tensor(each) for each in (self.counts, self.noise, self.sharpness))
        return combined(prior, unit, log_score, *logs)


def combined(
    prior: NIG, unit: NIG, log_score: Tensor, counts: Tensor, noise: Tensor, sharpness: Tensor
) -> NIG:
    """See `Evidence.posterior`."""
    scaled = unit.weighted(counts.log())
    scaled = NIG(scaled.gamma, scaled.log_nu, scaled.log_alpha, scaled.log_beta + noise.log())
    # A score of exactly 1 leaves no weight: its logarithm must not become 0 · ∞ with κ = 0.
    rest = torch.log1p(-log_score.exp().clamp_max(1)).clamp_min(-1e30)
    return prior.weighted(sharpness * rest).posterior(scaled, log_score)


def fit_evidence(
    prior: NIG, unit: NIG, log_score: Tensor, targets: Tensor, default: Evidence
) -> Evidence:
    """Maximises the mean log density of held-out targets (n, D) under the posterior, per target.

    (N / (N + w)) mean ln p(y) − (w / (N + w)) ½ Σ ln² (θ / θ₀) over θ in (n, τ, κ), for N samples,
    w = `WEIGHT` and θ₀ the defaults. A sharpness of 0 is kept.
    """
    fitted = []
    for d, start in enumerate(zip(*asdict(default).values(), strict=True)):
        one, before = (NIG(*(x[..., d].double() for x in vars(p).values())) for p in (unit, prior))
        fitted.append(_fit(before, one, log_score[:, 0].double(), targets[:, d].double(), start))
    return Evidence(*zip(*fitted, strict=True))


def _fit(
    prior: NIG, unit: NIG, log_score: Tensor, targets: Tensor, default: Sequence[float]
) -> tuple[float, ...]:
    from scipy.optimize import minimize  # noqa: PLC0415 (slow to import)

    free = 2 if default[2] == 0 else 3
    start = np.log(np.array(default[:free]))
    weight = WEIGHT / (len(targets) + WEIGHT)

    def bounded(logs: Any) -> tuple[float, ...]:
        counts, noise, sharpness = (*map(float, np.exp(logs)), *default[free:])
        # κ ν₀ ≤ n: the evidence grows with s, see docs/regression.md.
        return counts, noise, min(sharpness, counts / float(prior.log_nu.exp()))

    def objective(logs: Any) -> float:
        factors = torch.tensor(bounded(logs), dtype=torch.float64)
        posterior = combined(prior, unit, log_score, *factors)
        likelihood = float(posterior.log_prob(targets).mean())
        return float(0.5 * weight * np.square(logs - start).sum() - (1 - weight) * likelihood)

    bounds = [tuple(map(math.log, each)) for each in BOUNDS[:free]]
    best = minimize(
        objective,
        start,
        method="Nelder-Mead",
        bounds=bounds,
        options={"xatol": 1e-2, "fatol": 1e-5},
    )
    return bounded(best.x)
