"""The normal-inverse-gamma distribution of the mean and variance of a target, and its Student-t prediction.

NIG(γ, ν, α, β):  σ² ~ InverseGamma(α, β),  μ | σ² ~ N(γ, σ² / ν),  y | μ, σ² ~ N(μ, σ²). ν and 2α count
observations: those that determine the mean, and those that determine the variance. The prediction for y is a
Student-t distribution with 2α degrees of freedom, location γ and squared scale β (1 + ν) / (ν α).

A normal distribution is the limit of infinite counts; see `NIG.normal`. Parameters are kept as logarithms, so
that nothing overflows for extreme ones.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from daedl.dirichlet import log_gamma_gap

# ln of counts above which a Student-t density equals the normal one to the last digit of float64.
CERTAIN = 60.0
# Above this ln α, ln Γ(α + ½) − ln Γ(α) is computed by its series, whose first omitted term is below 1e-14.
_LARGE = math.log(100.0)
# Smallest |y − γ| that the log density distinguishes from 0: its gradient is finite in float32.
_LEAST = 1e-18
# exp of this value is finite in float64, with a margin for products.
_HUGE = 700.0


@dataclass(frozen=True)
class NIG:
    """Normal-inverse-gamma distributions, one per element; all parameters have the same shape.

    Attributes:
        gamma: γ, the predicted mean.
        log_nu: ln ν, of the evidence for the mean.
        log_alpha: ln α, of half the evidence for the variance.
        log_beta: ln β, of half the sum of squared deviations.
    """

    gamma: Tensor
    log_nu: Tensor
    log_alpha: Tensor
    log_beta: Tensor

    @classmethod
    def normal(cls, mean: Tensor, variance: Tensor, epistemic: Tensor | None = None) -> "NIG":
        """The limit α → ∞ with noise `variance`, whose prediction is N(mean, variance + epistemic).

        Then ν = variance / epistemic, which is infinite without an epistemic variance.
        """
        certain = torch.full_like(mean, CERTAIN)
        log_variance = variance.log()
        log_nu = certain if epistemic is None else log_variance - epistemic.log()
        return cls(mean, log_nu.clamp(-CERTAIN, CERTAIN), certain, log_variance + certain)

    @classmethod
    def evidence(cls, mean: Tensor, log_variance: Tensor, log_count: Tensor | float) -> "NIG":
        """Evidence of n = exp(log_count) observations: ν = n, α = n/2, β = n σ²/2."""
        log_nu = torch.zeros_like(mean) + log_count
        half = log_nu - math.log(2)
        return cls(mean, log_nu, half, half + log_variance)

    @property
    def aleatoric(self) -> Tensor:
        """Expected noise variance E[σ²] = β / (α − 1); infinite for α ≤ 1."""
        return (self.log_beta - _log_less_one(self.log_alpha)).exp()

    @property
    def epistemic(self) -> Tensor:
        """Variance of the mean Var[μ] = β / (ν (α − 1)); infinite for α ≤ 1."""
        return (self.log_beta - _log_less_one(self.log_alpha) - self.log_nu).exp()

    @property
    def variance(self) -> Tensor:
        """Var[y] = β (1 + ν) / (ν (α − 1)), the sum of both parts; infinite for α ≤ 1."""
        return (self.log_squared_scale + self.log_alpha - _log_less_one(self.log_alpha)).exp()

    @property
    def log_squared_scale(self) -> Tensor:
        """Logarithm of the squared scale of the Student-t prediction, β (1 + ν) / (ν α)."""
        return self.log_beta - self.log_alpha + F.softplus(-self.log_nu)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of the Student-t prediction at `y`; differentiable.

        ln Γ(α + ½) − ln Γ(α) − ½ ln(2πα λ²) − (α + ½) ln(1 + (y − γ)² / (2αλ²)), λ² the squared scale.
        """
        log_alpha = self.log_alpha.clamp_max(CERTAIN)
        alpha, log_squared_scale = log_alpha.exp(), self.log_squared_scale
        distance = (y - self.gamma).abs().clamp_min(_LEAST).log()
        log_ratio = 2 * distance - log_squared_scale - log_alpha - math.log(2)
        tail = (alpha + 0.5) * F.softplus(log_ratio)
        return (
            _log_gamma_ratio(log_alpha) - 0.5 * (math.log(2 * math.pi) + log_squared_scale) - tail
        )

    def expected_log_prob(self, y: Tensor) -> Tensor:
        """E[ln N(y; μ, σ²)], the Bayesian log likelihood of `y`; differentiable.

        ½ (ψ(α) − ln β − ln 2π − 1/ν − (α/β) (y − γ)²); below `log_prob` by Jensen's inequality.
        """
        squares = (self.log_alpha - self.log_beta).exp() * (y - self.gamma).square()
        log_noise = self.log_beta - _digamma(self.log_alpha)
        return -0.5 * (math.log(2 * math.pi) + log_noise + (-self.log_nu).exp() + squares)

    def entropy(self) -> Tensor:
        """Differential entropy of (μ, σ²); differentiable.

        ½ ln 2πe − ½ ln ν + (3/2) ln β + ln Γ(α) + α − (α + 3/2) ψ(α).
        """
        alpha = self.log_alpha.clamp_max(_LARGE).exp()
        direct = torch.lgamma(alpha) + alpha - (alpha + 1.5) * torch.digamma(alpha)
        y = (-self.log_alpha.clamp_min(_LARGE)).exp()
        series = 0.5 * math.log(2 * math.pi) + 0.5 + y * (11 / 12 + y * (1 / 8 - y * (1 / 90)))
        shape = torch.where(self.log_alpha < _LARGE, direct, series - 2 * self.log_alpha)
        return 0.5 * (math.log(2 * math.pi) + 1 - self.log_nu + 3 * self.log_beta) + shape

    def rescaled(self, mean: Tensor, std: Tensor) -> "NIG":
        """The distribution of mean + std · y, which changes units."""
        return NIG(
            mean + std * self.gamma, self.log_nu, self.log_alpha, self.log_beta + 2 * std.log()
        )

    def weighted(self, log_weight: Tensor) -> "NIG":
        """The distribution whose observations, ν, α and β, are multiplied by e^log_weight."""
        counts = (each + log_weight for each in (self.log_nu, self.log_alpha, self.log_beta))
        return NIG(self.gamma, *counts)

    def posterior(self, evidence: "NIG", log_score: Tensor) -> "NIG":
        """This distribution as prior, updated with `evidence` whose counts are multiplied by s = e^log_score.

            ν' = ν₀ + s ν           γ' = (ν₀ γ₀ + s ν γ) / ν'
            α' = α₀ + s α           β' = β₀ + s β + ν₀ s ν (γ − γ₀)² / (2 ν')

        It is the conjugate update with s ν observations of mean γ. Without evidence (s = 0) it is the prior;
        a mean that contradicts the prior widens the prediction.
        """
        log_seen = log_score + evidence.log_nu
        log_nu = torch.logaddexp(self.log_nu, log_seen)
        share = (log_seen - log_nu).exp()
        difference = evidence.gamma - self.gamma
        log_conflict = 2 * difference.abs().clamp_min(_LEAST).log() - math.log(2)
        log_conflict = log_conflict + self.log_nu + log_seen - log_nu
        log_beta = torch.logaddexp(self.log_beta, log_score + evidence.log_beta)
        return NIG(
            self.gamma + share * difference,
            log_nu,
            torch.logaddexp(self.log_alpha, log_score + evidence.log_alpha),
            torch.logaddexp(log_beta, log_conflict),
        )

    def kl(self, other: "NIG") -> Tensor:
        """KL(self ‖ other) ≥ 0, computed in float64 and clamped to the largest finite value of the dtype.

        With x = ν₂ / ν₁, q = α₁ β₂ / (α₂ β₁), e(x) = x − 1 − ln x and r the gap of `log_gamma_gap`:

            ½ e(x) + ½ ν₂ (α₁ / β₁) (γ₁ − γ₂)² + r(α₂, α₁) + α₂ e(q)
        """
        a, b = (
            NIG(*(getattr(each, f.name).double() for f in fields(NIG))) for each in (self, other)
        )
        log_q = a.log_alpha - b.log_alpha + b.log_beta - a.log_beta
        log_square = 2 * (a.gamma - b.gamma).abs().log()
        means = (b.log_nu + a.log_alpha - a.log_beta + log_square).clamp_max(_HUGE).exp()
        variances = log_gamma_gap(b.log_alpha, a.log_alpha)
        # Clamped: for equal arguments infinity times zero would be NaN.
        variances = variances + b.log_alpha.clamp_max(_HUGE).exp() * _excess(log_q)
        divergence = 0.5 * (_excess(b.log_nu - a.log_nu) + means) + variances
        dtype = self.gamma.dtype
        return divergence.clamp(0, torch.finfo(dtype).max).to(dtype)

    def cdf(self, y: Tensor) -> Tensor:
        """P(target ≤ y), float64, on the CPU."""
        location, scale, freedom = self._student()
        z = (_array(y) - location) / scale
        return torch.from_numpy(
            np.where(np.isinf(freedom), special.ndtr(z), special.stdtr(freedom, z))
        )

    def quantile(self, level: float | Tensor) -> Tensor:
        """Value that the target is below with probability `level`, float64, on the CPU."""
        location, scale, freedom = self._student()
        p = _array(torch.as_tensor(level, dtype=torch.float64))
        z = np.where(np.isinf(freedom), special.ndtri(p), special.stdtrit(freedom, p))
        return torch.from_numpy(location + scale * z)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Bounds of the central interval that contains the target with probability `level`, float64."""
        upper = self.quantile(0.5 + 0.5 * level)
        return 2 * self.gamma.detach().cpu().double() - upper, upper

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score at `y`, in the units of y, float64; infinite for 2α ≤ 1.

        λ (z (2F(z) − 1) + 2 f(z) (k + z²) / (k − 1) − 2 √k B(½, k − ½) / ((k − 1) B(½, k/2)²)) with
        k = 2α, z = (y − γ) / λ, F and f those of Student's t (Jordan et al., scoringRules, 2019).
        """
        location, scale, freedom = self._student()
        z = (_array(y) - location) / scale
        normal = np.isinf(freedom)
        k = np.where(normal, 3.0, np.maximum(freedom, 1 + 1e-9))
        rising = special.gammaln((k + 1) / 2) - special.gammaln(k / 2)
        density = np.exp(rising - (k + 1) / 2 * np.log1p(z**2 / k)) / np.sqrt(k * np.pi)
        betas = np.exp(special.betaln(0.5, k - 0.5) - 2 * special.betaln(0.5, k / 2))
        student = 2 * density * (k + z**2) / (k - 1) - 2 * np.sqrt(k) / (k - 1) * betas
        gauss = np.exp(-0.5 * z**2) * math.sqrt(2 / math.pi) - 1 / math.sqrt(math.pi)
        score = z * (2 * _array(self.cdf(y)) - 1) + np.where(normal, gauss, student)
        return torch.from_numpy(np.where(freedom > 1, scale * score, np.inf))

    def _student(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Location, scale and degrees of freedom; these are infinite where the prediction is normal."""
        scale = (0.5 * self.log_squared_scale.double()).clamp(-_HUGE, _HUGE).exp()
        freedom = 2 * self.log_alpha.double().clamp(-_HUGE, _HUGE).exp()
        # scipy's functions lose digits for more degrees of freedom, where the difference is below 1e-8.
        freedom = torch.where(freedom > 1e8, math.inf, freedom)
        return _array(self.gamma), _array(scale), _array(freedom)


def _array(tensor: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = tensor.detach().cpu().double().numpy()
    return array


def _log_less_one(log_x: Tensor) -> Tensor:
    """ln(x − 1); −∞ for x ≤ 1."""
    positive = log_x.clamp_min(1e-30)
    result = positive + torch.log(-torch.expm1(-positive))
    return torch.where(log_x > 0, result, -math.inf)


def _digamma(log_x: Tensor) -> Tensor:
    """ψ(x)."""
    y = (-log_x.clamp_min(_LARGE)).exp()
    series = log_x - y * (1 / 2 + y * (1 / 12 - y * y / 120))
    return torch.where(log_x < _LARGE, torch.digamma(log_x.clamp_max(_LARGE).exp()), series)


def _log_gamma_ratio(log_x: Tensor) -> Tensor:
    """ln Γ(x + ½) − ln Γ(x) − ½ ln x."""
    x = log_x.clamp_max(_LARGE).exp()
    # ln Γ(x) = ln Γ(x + 1) − ln x is finite as x tends to 0.
    direct = torch.lgamma(x + 0.5) - torch.lgamma(x + 1) + 0.5 * log_x
    y = (-log_x.clamp_min(_LARGE)).exp()
    y2 = y * y
    series = -y * (1 / 8 - y2 * (1 / 192 - y2 * (1 / 640 - y2 * 17 / 14336)))
    return torch.where(log_x < _LARGE, direct, series)


def _excess(log_x: Tensor) -> Tensor:
    """x − 1 − ln x ≥ 0."""
    small = log_x.clamp(-0.01, 0.01)
    series = small**2 * (
        1 / 2 + small * (1 / 6 + small * (1 / 24 + small * (1 / 120 + small / 720)))
    )
    return torch.where(log_x.abs() < 0.01, series, log_x.clamp_max(_HUGE).expm1() - log_x)
