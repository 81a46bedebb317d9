"""The normal-inverse-gamma distribution against scipy, mpmath and Monte Carlo."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from daedl.nig import NIG

ORDINARY = [
    (0.3, 2.0, 1.5, 0.7),
    (-4.0, 0.1, 3.0, 12.0),
    (100.0, 50.0, 40.0, 1e-3),
    (0.0, 1.0, 0.2, 1.0),
]
LOG = st.floats(-200, 200)
EXTREME = st.tuples(st.floats(-1e6, 1e6), LOG, LOG, LOG)


def build(gamma, nu, alpha, beta, dtype=torch.float64):
    return NIG(
        *(torch.tensor([x], dtype=dtype) for x in (gamma, *map(math.log, (nu, alpha, beta))))
    )


def from_logs(gamma, *logs, dtype=torch.float64):
    return NIG(*(torch.tensor([x], dtype=dtype) for x in (gamma, *logs)))


def student(gamma, nu, alpha, beta):
    return stats.t(2 * alpha, gamma, math.sqrt(beta * (1 + nu) / (nu * alpha)))


@pytest.mark.parametrize("parameters", ORDINARY)
def test_prediction_equals_scipys_student_t(parameters):
    nig, reference = build(*parameters), student(*parameters)
    for level in (1e-4, 0.05, 0.5, 0.7, 0.999):
        y = reference.ppf(level)
        assert float(nig.quantile(level)) == pytest.approx(y, rel=1e-9, abs=1e-9)
        assert float(nig.cdf(torch.tensor([y]))) == pytest.approx(level, rel=1e-9)
        assert float(nig.log_prob(torch.tensor([y]))) == pytest.approx(
            reference.logpdf(y), rel=1e-11
        )
    low, high = nig.interval(0.9)
    np.testing.assert_allclose(
        (float(low), float(high)), reference.interval(0.9), rtol=1e-9, atol=1e-9
    )
    if parameters[2] > 1:
        assert float(nig.variance) == pytest.approx(reference.var(), rel=1e-12)
        assert float(nig.aleatoric + nig.epistemic) == pytest.approx(reference.var(), rel=1e-12)
    else:
        assert math.isinf(nig.variance)


def test_moments_are_those_of_samples():
    gamma, nu, alpha, beta = 1.0, 2.0, 5.0, 3.0
    rng = np.random.default_rng(0)
    noise = 1 / rng.gamma(alpha, 1 / beta, 400_000)
    mean = rng.normal(gamma, np.sqrt(noise / nu))
    nig = build(gamma, nu, alpha, beta)
    assert float(nig.aleatoric) == pytest.approx(noise.mean(), rel=0.01)
    assert float(nig.epistemic) == pytest.approx(mean.var(), rel=0.01)
    assert float(nig.variance) == pytest.approx(rng.normal(mean, np.sqrt(noise)).var(), rel=0.01)


def exact_log_prob(y, gamma, log_nu, log_alpha, log_beta):
    with mpmath.workdps(250):
        nu, alpha, beta = (mpmath.exp(mpmath.mpf(x)) for x in (log_nu, log_alpha, log_beta))
        squared = beta * (1 + nu) / (nu * alpha)
        # Counts above e^60 are those of a normal distribution, in `NIG` and up to 1e-26 in truth.
        alpha = min(alpha, mpmath.exp(60))
        ratio = mpmath.loggamma(alpha + 0.5) - mpmath.loggamma(alpha)
        tail = (alpha + 0.5) * mpmath.log1p((mpmath.mpf(y) - gamma) ** 2 / (2 * alpha * squared))
        return float(ratio - mpmath.log(2 * mpmath.pi * alpha * squared) / 2 - tail)


@settings(max_examples=150, deadline=None)
@given(EXTREME, st.floats(-1e6, 1e6))
def test_log_density_equals_mpmath_for_extreme_parameters(parameters, y):
    computed = float(from_logs(*parameters).log_prob(torch.tensor([y], dtype=torch.float64)))
    distance = max(abs(y - parameters[0]), 1e-18)
    assert computed == pytest.approx(
        exact_log_prob(distance, 0.0, *parameters[1:]), rel=1e-9, abs=1e-9
    )


@settings(max_examples=100, deadline=None)
@given(
    st.floats(-100, 100),
    st.floats(-30, 30),
    st.floats(-30, 30),
    st.floats(-30, 30),
    st.floats(-100, 100),
)
def test_gradients_are_finite_in_float32(gamma, log_nu, log_alpha, log_beta, y):
    parameters = [
        torch.tensor([x], requires_grad=True) for x in (gamma, log_nu, log_alpha, log_beta)
    ]
    log_prob = NIG(*parameters).log_prob(torch.tensor([y]))
    assert torch.isfinite(log_prob).all()
    for gradient in torch.autograd.grad(log_prob.sum(), parameters):
        assert torch.isfinite(gradient).all()


def test_gradient_equals_finite_differences():
    parameters = [
        torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (0.3, -1.0, 0.7, 2.0)
    ]
    y = torch.tensor([1.1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *each: NIG(*each).log_prob(y), parameters)


def test_normal_limit_adds_both_variances():
    mean, noise, doubt = (torch.tensor([x], dtype=torch.float64) for x in (2.0, 0.5, 0.3))
    nig, reference = NIG.normal(mean, noise, doubt), stats.norm(2.0, math.sqrt(0.8))
    assert float(nig.aleatoric) == pytest.approx(0.5, rel=1e-12)
    assert float(nig.epistemic) == pytest.approx(0.3, rel=1e-12)
    for y in (-30.0, 1.0, 2.0, 5.0):
        assert float(nig.log_prob(torch.tensor([y]))) == pytest.approx(
            reference.logpdf(y), rel=1e-10
        )
        assert float(nig.cdf(torch.tensor([y]))) == pytest.approx(reference.cdf(y), rel=1e-10)
    assert float(nig.quantile(0.9)) == pytest.approx(reference.ppf(0.9), rel=1e-10)
    assert float(NIG.normal(mean, noise).variance) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("parameters", [*ORDINARY[:3], (0.5, 1e30, 1e30, 1e30)])
@pytest.mark.parametrize("y", [-3.0, 0.1, 7.0])
def test_crps_equals_its_integral(parameters, y):
    nig = build(*parameters)
    location, scale = parameters[0], math.exp(0.5 * float(nig.log_squared_scale))
    y = location + scale * y

    def square(t):
        return (float(nig.cdf(torch.tensor([t], dtype=torch.float64))) - (t >= y)) ** 2

    points = sorted([y, *(location + k * scale for k in (-4000, -30, 30, 4000))])
    pieces = itertools.pairwise(points)
    expected = sum(integrate.quad(square, a, b, limit=400)[0] for a, b in pieces)
    assert float(nig.crps(torch.tensor([y], dtype=torch.float64))) == pytest.approx(
        expected, rel=1e-4
    )


def exact_kl(one, two):
    """The divergence with mpmath, from the densities of the precision and of the mean given it."""
    with mpmath.workdps(400):
        (g1, n1, a1, b1), (g2, n2, a2, b2) = (
            (mpmath.mpf(p[0]), *(mpmath.exp(mpmath.mpf(x)) for x in p[1:])) for p in (one, two)
        )
        gamma = (a1 - a2) * mpmath.digamma(a1) - mpmath.loggamma(a1) + mpmath.loggamma(a2)
        gamma += a2 * mpmath.log(b1 / b2) + a1 * (b2 - b1) / b1
        return gamma + (n2 / n1 - 1 + mpmath.log(n1 / n2) + n2 * a1 / b1 * (g1 - g2) ** 2) / 2


NARROW = st.tuples(st.floats(-50, 50), *[st.floats(-30, 60)] * 3)


@settings(max_examples=100, deadline=None)
@given(NARROW, NARROW)
def test_kl_equals_mpmath(one, two):
    computed, expected = float(from_logs(*one).kl(from_logs(*two))), exact_kl(one, two)
    assert computed == pytest.approx(float(expected), rel=1e-6, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(EXTREME, EXTREME)
def test_kl_is_finite_and_zero_for_equal_distributions(one, two):
    a, b = from_logs(*one, dtype=torch.float32), from_logs(*two, dtype=torch.float32)
    assert torch.isfinite(a.kl(b)).all()
    assert a.kl(b) >= 0
    assert float(a.kl(a)) == 0


def test_kl_equals_monte_carlo():
    one, two = (0.5, 2.0, 4.0, 3.0), (0.0, 1.0, 2.5, 2.0)
    rng = np.random.default_rng(0)
    noise = 1 / rng.gamma(one[2], 1 / one[3], 400_000)
    mean = rng.normal(one[0], np.sqrt(noise / one[1]))

    def log_density(gamma, nu, alpha, beta):
        spread = stats.invgamma.logpdf(noise, alpha, scale=beta)
        return spread + stats.norm.logpdf(mean, gamma, np.sqrt(noise / nu))

    expected = (log_density(*one) - log_density(*two)).mean()
    assert float(build(*one).kl(build(*two))) == pytest.approx(expected, abs=0.01)


def test_posterior_equals_the_update_with_observations():
    """Evidence of n observations gives what n observations give one by one."""
    prior, y = (0.4, 1.5, 2.0, 0.8), np.array([1.0, 2.5, -0.3, 0.9])
    nu, gamma, alpha, beta = prior[1], prior[0], prior[2], prior[3]
    for value in y:
        beta += 0.5 * nu * (value - gamma) ** 2 / (nu + 1)
        gamma, nu, alpha = (nu * gamma + value) / (nu + 1), nu + 1, alpha + 0.5
    mean, log_variance = (
        torch.tensor([x], dtype=torch.float64) for x in (y.mean(), math.log(y.var()))
    )
    evidence = NIG.evidence(mean, log_variance, math.log(len(y)))
    updated = build(*prior).posterior(evidence, torch.zeros(1, dtype=torch.float64))
    expected = build(gamma, nu, alpha, beta)
    for name in ("gamma", "log_nu", "log_alpha", "log_beta"):
        torch.testing.assert_close(getattr(updated, name), getattr(expected, name))


def test_posterior_without_evidence_is_the_prior():
    prior = build(*ORDINARY[0])
    same = prior.posterior(
        build(9.0, 3.0, 2.0, 5.0), torch.tensor([-math.inf], dtype=torch.float64)
    )
    for name in ("gamma", "log_nu", "log_alpha", "log_beta"):
        assert torch.equal(getattr(same, name), getattr(prior, name))


def test_rescaled_changes_units():
    nig = build(*ORDINARY[0])
    mean, std = torch.tensor([5.0]), torch.tensor([0.1])
    y = torch.tensor([0.8], dtype=torch.float64)
    changed = nig.rescaled(mean, std).log_prob(mean + std * y)
    torch.testing.assert_close(changed, nig.log_prob(y) - std.log().double())


@pytest.mark.parametrize("parameters", ORDINARY)
def test_expected_log_prob_equals_its_integral(parameters):
    """E over μ in closed form, over σ² by quadrature."""
    gamma, nu, alpha, beta = parameters
    noise, y = stats.invgamma(alpha, scale=beta), gamma + 0.7

    def given_noise(level):
        variance = noise.ppf(level)
        return -0.5 * (math.log(2 * math.pi * variance) + (y - gamma) ** 2 / variance + 1 / nu)

    expected, _ = integrate.quad(given_noise, 0, 1, limit=500)
    computed = build(*parameters).expected_log_prob(torch.tensor([y], dtype=torch.float64))
    assert float(computed) == pytest.approx(expected, rel=1e-5)


@given(st.tuples(st.floats(-1e3, 1e3), *[st.floats(-30, 30)] * 3), st.floats(-1e3, 1e3))
@settings(deadline=None)
def test_expected_log_prob_is_at_most_the_log_density(parameters, y):
    nig, target = from_logs(*parameters), torch.tensor([y], dtype=torch.float64)
    bound = float(nig.log_prob(target))
    assert float(nig.expected_log_prob(target)) <= bound + 1e-9 * (1 + abs(bound))


@pytest.mark.parametrize("parameters", ORDINARY)
def test_entropy_equals_scipys(parameters):
    _, nu, alpha, beta = parameters
    noise = stats.invgamma(alpha, scale=beta)
    mean_log = math.log(beta) - float(mpmath.digamma(alpha))
    expected = noise.entropy() + 0.5 * (math.log(2 * math.pi * math.e / nu) + mean_log)
    assert float(build(*parameters).entropy()) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("log_alpha", [-20.0, 0.0, 4.6, 4.7, 10.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_of_small_and_large_counts(log_alpha, dtype):
    with mpmath.workdps(60):
        alpha = mpmath.exp(log_alpha)
        shape = mpmath.loggamma(alpha) + alpha - (alpha + 1.5) * mpmath.digamma(alpha)
        expected = float(0.5 * mpmath.log(2 * mpmath.pi * mpmath.e) + shape)
    computed = from_logs(0.0, 0.0, log_alpha, 0.0, dtype=dtype).entropy()
    assert float(computed) == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-9)
