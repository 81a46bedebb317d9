"""The Dirichlet distribution, parameterised by the logarithm of its concentrations.

All quantities are computed from `log_alpha` to avoid overflow: the mean is a softmax, the log precision
a logsumexp. The textbook formulas of entropies and divergences subtract terms of order alpha log alpha
that nearly cancel. Here these terms are removed analytically, which leaves residuals that are small for
large arguments (x = exp(log_x)):

    ρ(x) = ln Γ(x) − x ln x + x  ≈ −½ ln x + ½ ln 2π
    κ(x) = ψ(x + 1) − ln x       ≈ 1 / (2x)
    δ(x) = 1 / ψ₁(x) − x + ½     ≈ 1 / (12x)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# The asymptotic series is used above this value; its first omitted term is then below 1e-13 (chosen).
_LARGE = math.log(25.0)
# In float64 ln Γ, ψ and ψ₁ of PyTorch lose four digits to cancellation up to this value.
_LARGE_FLOAT64 = math.log(1000.0)
# Numbers per chunk of `WithGradient`: its intermediate results stay near 2 MB (chosen).
_CHUNK = 65_536
# exp of this value is finite in float64, with a margin for sums.
_HUGE = 700.0

RowFunction = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Dirichlet:
    """Dirichlet distributions over C classes, one per row of `log_alpha` (..., C)."""

    log_alpha: Tensor

    @property
    def alpha(self) -> Tensor:
        """Concentrations α (..., C); infinite where log α exceeds the range of the dtype."""
        return self.log_alpha.exp()

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.log_alpha.shape[-1]

    @property
    def log_precision(self) -> Tensor:
        """ln α₀ = logsumexp_c ln α_c, (...)."""
        return self.log_alpha.logsumexp(-1)

    @property
    def precision(self) -> Tensor:
        """α₀ = Σ_c α_c, (...)."""
        return self.log_precision.exp()

    @property
    def mean(self) -> Tensor:
        """m = α / α₀ = softmax(ln α), (..., C)."""
        return self.log_alpha.softmax(-1)

    @property
    def variance(self) -> Tensor:
        """m_c (1 − m_c) / (α₀ + 1), (..., C); 1 / (α₀ + 1) is a sigmoid of −ln α₀."""
        mean = self.mean
        return mean * (1 - mean) * torch.sigmoid(-self.log_precision).unsqueeze(-1)

    @property
    def entropy_of_mean(self) -> Tensor:
        """Total uncertainty H(m) = −Σ_c m_c ln m_c, (...)."""
        log_mean = self.log_alpha.log_softmax(-1)
        return -(log_mean.exp() * log_mean).sum(-1)

    @property
    def expected_log(self) -> Tensor:
        """E[ln π_c] = ψ(α_c) − ψ(α₀), (..., C)."""
        log_precision = self.log_precision.unsqueeze(-1)
        return (self.log_alpha - log_precision) + (
            _psi_residual(self.log_alpha) - _psi_residual(log_precision)
        )

    @property
    def expected_entropy(self) -> Tensor:
        """Data uncertainty E[H(π)] = −Σ_c m_c (ψ(α_c + 1) − ψ(α₀ + 1)), (...), ≥ 0."""
        psi_precision = _psi_of_next(self.log_precision).unsqueeze(-1)
        return (self.mean * (psi_precision - _psi_of_next(self.log_alpha)).clamp_min(0)).sum(-1)

    @property
    def mutual_information(self) -> Tensor:
        """Knowledge uncertainty H(m) − E[H(π)] = Σ_c m_c κ(α_c) − κ(α₀), (...), ≥ 0."""
        mutual = (self.mean * _kappa(self.log_alpha)).sum(-1) - _kappa(self.log_precision)
        return mutual.clamp_min(0)

    @property
    def differential_entropy(self) -> Tensor:
        """ln B(α) + (α₀ − C) ψ(α₀) − Σ_c (α_c − 1) ψ(α_c), (...); differentiable once."""
        return -self.kl_to_uniform() - math.lgamma(self.num_classes)

    @property
    def vacuity(self) -> Tensor:
        """Uncertainty mass u = C / α₀, (...); at most 1 if all α_c ≥ 1, as in EDL."""
        return (math.log(self.num_classes) - self.log_precision).exp()

    def kl(self, other: "Dirichlet") -> Tensor:
        """KL(self ‖ other) = ln B(β) − ln B(α) + Σ_c (α_c − β_c)(ψ(α_c) − ψ(α₀)), (...), ≥ 0.

        Written with the means m_α, m_β as β₀ Σ_c m_β ln(m_β / m_α) + Σ_c r(β_c, α_c) − r(β₀, α₀),
        r(b, a) = ρ(b) − ρ(a) − (b − a)(ψ(a) − ln a), which is exactly 0 for equal arguments of any size.
        The divergence is of order β / α, which can overflow float32: it is computed in float64 and
        clamped to the largest finite value of the dtype of `log_alpha`.
        """
        if other.log_alpha.shape[-1] != self.num_classes:
            raise ValueError(
                f"KL between Dirichlets of {self.num_classes} and {other.log_alpha.shape[-1]} "
                "classes; expected the same number: pass distributions over the same classes"
            )
        log_a, log_b = self.log_alpha.double(), other.log_alpha.double()
        log_a0, log_b0 = log_a.logsumexp(-1), log_b.logsumexp(-1)
        log_mean_a, log_mean_b = log_a.log_softmax(-1), log_b.log_softmax(-1)
        categorical = (log_mean_b.exp() * (log_mean_b - log_mean_a)).sum(-1)
        rest = log_gamma_gap(log_b, log_a).sum(-1) - log_gamma_gap(log_b0, log_a0)
        dtype = self.log_alpha.dtype
        # Clamped: for equal arguments infinity times zero would be NaN.
        return (
            (log_b0.clamp_max(_HUGE).exp() * categorical + rest)
            .clamp(0, torch.finfo(dtype).max)
            .to(dtype)
        )

    def kl_to_uniform(self) -> Tensor:
        """KL(self ‖ Dir(1)) = −differential entropy − ln Γ(C), (...), ≥ 0; differentiable once."""
        divergence: Tensor = WithGradient.apply(kl_to_uniform, self.log_alpha)  # type: ignore[no-untyped-call]
        return divergence


class WithGradient(torch.autograd.Function):
    """Applies a function that returns one value per row (B,) and its gradient (B, C); differentiable once.

    Its arguments are `rows` (B, C), and further tensors with one entry per row. A training step evaluates it
    on few numbers, where the number of operations counts: automatic differentiation takes four to five times
    as long. Many rows are processed in chunks, whose intermediate results stay in the cache.
    """

    @staticmethod
    def forward(ctx: Any, function: RowFunction, rows: Tensor, *others: Tensor) -> Tensor:
        size = max(1, _CHUNK // rows.shape[-1])
        if rows.ndim != 2 or len(rows) <= size:
            values, gradient = function(rows, *others)
        else:
            parts = map(function, *(torch.split(each, size) for each in (rows, *others)))
            values, gradient = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        others = [None] * (len(ctx.needs_input_grad) - 2)
        return None, gradients[0].unsqueeze(-1) * gradient, *others


def kl_to_uniform(log_alpha: Tensor) -> tuple[Tensor, Tensor]:
    """KL(Dir(α) ‖ Dir(1)) (...) and its derivative with respect to ln α (..., C).

    With g(x) = ln Γ(x) − (x − 1) ψ(x) + x and x g'(x) = x − x² ψ₁(x) + x ψ₁(x):

        KL            = g(α₀) + (C − 1) ψ(α₀) − Σ_c g(α_c) − ln Γ(C)
        ∂KL / ∂ln α_c = m_c (α₀ g'(α₀) + (C − 1) α₀ ψ₁(α₀)) − α_c g'(α_c)
    """
    classes, log_precision = log_alpha.shape[-1], log_alpha.logsumexp(-1, keepdim=True)
    g, _, slope, _ = _gamma_terms(log_alpha)
    # In float64 the direct formulas hold up to larger x; not all other devices support it.
    wide = log_precision.double() if log_alpha.device.type == "cpu" else log_precision
    g0, psi0, slope0, x_trigamma0 = _gamma_terms(wide)
    of_precision = slope0.add_(x_trigamma0, alpha=classes - 1).to(log_alpha)
    gradient = log_alpha.softmax(-1).mul_(of_precision).sub_(slope)
    value = g0.add_(psi0, alpha=classes - 1).sub_(math.lgamma(classes))
    return value.squeeze(-1).to(log_alpha) - g.sum(-1), gradient


def _gamma_terms(log_x: Tensor) -> tuple[Tensor, ...]:
    """g(x), ψ(x), x g'(x) and x ψ₁(x); g as in `kl_to_uniform`."""
    large = _LARGE_FLOAT64 if log_x.dtype == torch.float64 else _LARGE
    terms = _gamma_terms_near(log_x.clamp_max(large))
    # Large concentrations are rare: KL terms penalise them.
    if log_x.numel() > 0 and log_x.max() >= large:
        far = log_x >= large
        for term, values in zip(terms, _gamma_terms_far(log_x[far]), strict=True):
            term[far] = values
    return terms


def _gamma_terms_near(log_x: Tensor) -> tuple[Tensor, ...]:
    """`_gamma_terms` from PyTorch's functions at x + 1, which are finite as x tends to 0."""
    x = log_x.exp()
    next_, inverse = x + 1, x.reciprocal()
    psi_next = torch.digamma(next_)
    psi = psi_next - inverse
    g = torch.lgamma(next_).sub_(log_x).add_(next_.addcmul(x, psi_next, value=-1)).add_(psi)
    x2_trigamma = (x * x).mul_(torch.polygamma(1, next_)).add_(1)
    x_trigamma = x2_trigamma * inverse
    return g, psi, x.sub_(x2_trigamma).add_(x_trigamma), x_trigamma


def _gamma_terms_far(log_x: Tensor) -> tuple[Tensor, ...]:
    """`_gamma_terms` from their series, without the terms of order x ln x that cancel."""
    y, x_psi_residual = (-log_x).exp(), _x_psi_residual(log_x)
    psi = log_x + y * x_psi_residual
    tail = y * _trigamma_tail(y)
    x_trigamma = 1 + y * (0.5 + tail)
    return _rho(log_x) - x_psi_residual + psi, psi, x_trigamma - 0.5 - tail, x_trigamma


def log_gamma_gap(log_b: Tensor, log_a: Tensor) -> Tensor:
    """r(b, a) = ρ(b) − ρ(a) − (b − a)(ψ(a) − ln a)."""
    # (b − a) / a, clamped: larger ratios overflow the result in any case.
    ratio = (log_b - log_a).clamp_max(_HUGE).expm1()
    return _rho(log_b) - _rho(log_a) - ratio * _x_psi_residual(log_a)


def _rho(log_x: Tensor) -> Tensor:
    """ρ(x) = ln Γ(x) − x ln x + x."""
    small = log_x.clamp_max(_LARGE)
    x = small.exp()
    # ln Γ(x) = ln Γ(x + 1) − ln x has finite value and gradient as x tends to 0.
    direct = torch.lgamma(x + 1) - small - x * small + x
    large = log_x.clamp_min(_LARGE)
    y = (-large).exp()
    y2 = y * y
    correction = y * (1 / 12 - y2 * (1 / 360 - y2 * (1 / 1260 - y2 / 1680)))
    series = 0.5 * math.log(2 * math.pi) - 0.5 * large + correction
    return torch.where(log_x < _LARGE, direct, series)


def _kappa(log_x: Tensor) -> Tensor:
    """κ(x) = ψ(x + 1) − ln x."""
    small = log_x.clamp_max(_LARGE)
    direct = torch.digamma(small.exp() + 1) - small
    y = (-log_x.clamp_min(_LARGE)).exp()
    y2 = y * y
    series = 0.5 * y - y2 * (1 / 12 - y2 * (1 / 120 - y2 * (1 / 252 - y2 / 240)))
    return torch.where(log_x < _LARGE, direct, series)


def _psi_of_next(log_x: Tensor) -> Tensor:
    """ψ(x + 1)."""
    direct = torch.digamma(log_x.clamp_max(_LARGE).exp() + 1)
    return torch.where(log_x < _LARGE, direct, log_x + _kappa(log_x))


def _x_psi_residual(log_x: Tensor) -> Tensor:
    """x (ψ(x) − ln x); tends to −½ for large x, where the product would be ∞ · 0."""
    x = log_x.clamp_max(_LARGE).exp()
    y = (-log_x.clamp_min(_LARGE)).exp()
    y2 = y * y
    series = -0.5 - y * (1 / 12 - y2 * (1 / 120 - y2 * (1 / 252 - y2 / 240)))
    return torch.where(log_x < _LARGE, x * _kappa(log_x) - 1, series)


def _psi_residual(log_x: Tensor) -> Tensor:
    """ψ(x) − ln x = κ(x) − 1 / x."""
    return _kappa(log_x) - (-log_x).exp()


def log_trigamma(log_x: Tensor) -> Tensor:
    """ln ψ₁(x), same shape as `log_x`."""
    small = log_x.clamp_max(_LARGE)
    # ψ₁(x) = (1 + x² ψ₁(x + 1)) / x² has a finite logarithm as x tends to 0.
    direct = _x2_trigamma_of_next(small.exp()).log1p() - 2 * small
    large = log_x.clamp_min(_LARGE)
    y = (-large).exp()
    series = (y * (0.5 + y * _trigamma_tail(y))).log1p() - large
    return torch.where(log_x < _LARGE, direct, series)


def trigamma_residual(log_x: Tensor) -> Tensor:
    """δ(x) = 1 / ψ₁(x) − x + ½, same shape as `log_x`; decreases from ½ at x = 0 to 0."""
    x = log_x.clamp_max(_LARGE).exp()
    direct = x * x / (1 + _x2_trigamma_of_next(x)) - x + 0.5
    y = (-log_x.clamp_min(_LARGE)).exp()
    tail = _trigamma_tail(y)
    series = y * (0.25 - tail * (1 - 0.5 * y)) / (1 + y * (0.5 + y * tail))
    return torch.where(log_x < _LARGE, direct, series)


def _x2_trigamma_of_next(x: Tensor) -> Tensor:
    """x² ψ₁(x + 1)."""
    # ψ₁(x + 1) = ζ(2, x + 1) (Hurwitz): torch's polygamma(1, ·) is accurate to nine digits in float64,
    # zeta to full precision, but zeta doesn't support half precision.
    trigamma: Tensor = torch.special.zeta(2.0, x.double() + 1)
    return x * x * trigamma.to(x)


def _trigamma_tail(y: Tensor) -> Tensor:
    """V(y) in ψ₁(x) = y (1 + y / 2 + y² V(y)), y = 1 / x, for large x."""
    y2 = y * y
    return 1 / 6 - y2 * (1 / 30 - y2 * (1 / 42 - y2 / 30))
