"""Dirichlet mathematics against torch.distributions, mpmath, Monte Carlo and worked numbers."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Dirichlet as Reference
from torch.distributions import kl_divergence

from daedl.dirichlet import Dirichlet, log_trigamma, trigamma_residual

SCALARS = (
    "log_precision",
    "precision",
    "entropy_of_mean",
    "expected_entropy",
    "mutual_information",
    "differential_entropy",
    "vacuity",
)
log_alphas = st.lists(
    st.lists(st.floats(-3, 9), min_size=3, max_size=3), min_size=1, max_size=4
).map(lambda rows: torch.tensor(rows, dtype=torch.float64))


def test_worked_numbers():
    """alpha = (5, 2, 1.5): values from 40-digit arithmetic."""
    d = Dirichlet(torch.tensor([5.0, 2.0, 1.5], dtype=torch.float64).log())
    uniform = Dirichlet(torch.zeros(3, dtype=torch.float64))
    expected = {
        "entropy_of_mean": 0.958692,
        "expected_entropy": 0.852927,
        "mutual_information": 0.105765,
        "differential_entropy": -1.51700,
    }
    for name, value in expected.items():
        assert float(getattr(d, name)) == pytest.approx(value, abs=5e-6), name
    assert float(d.kl(uniform)) == pytest.approx(0.823849, abs=5e-7)
    assert float(d.kl_to_uniform()) == pytest.approx(0.823849, abs=5e-7)
    assert float(uniform.kl(d)) == pytest.approx(2.45115, abs=5e-6)


def test_uniform_dirichlet_of_ten_classes():
    d = Dirichlet(torch.zeros(10, dtype=torch.float64))
    assert float(d.differential_entropy) == pytest.approx(-12.8018, abs=5e-5)
    assert float(d.vacuity) == pytest.approx(1.0)
    assert float(d.kl_to_uniform()) == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(log_alphas, log_alphas)
def test_agrees_with_torch_distributions(first, second):
    ours, reference = Dirichlet(first), Reference(first.exp())
    torch.testing.assert_close(ours.mean, reference.mean)
    torch.testing.assert_close(ours.variance, reference.variance)
    alpha = first.exp()
    expected_log = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
    torch.testing.assert_close(ours.expected_log, expected_log, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.differential_entropy, reference.entropy(), rtol=1e-8, atol=1e-7)
    other = second[:1].expand_as(first)
    torch.testing.assert_close(
        ours.kl(Dirichlet(other)),
        kl_divergence(reference, Reference(other.exp())),
        rtol=1e-7,
        atol=1e-6,
    )


@settings(max_examples=60, deadline=None)
@given(log_alphas, log_alphas)
def test_invariants(first, second):
    d = Dirichlet(first)
    assert (d.mutual_information >= 0).all()
    assert (d.expected_entropy >= 0).all()
    assert (d.mutual_information <= d.entropy_of_mean + 1e-12).all()
    assert (d.kl(Dirichlet(second[:1].expand_as(first))) >= 0).all()
    assert (d.kl(d) <= 1e-9).all()
    assert (d.kl_to_uniform() >= -1e-9).all()


@pytest.mark.parametrize("row", [(80.0, -80.0, 0.0), (-80.0, -80.0, -80.0), (30.0, 29.0, -5.0)])
def test_matches_mpmath_if_textbook_formulas_cancel(row):
    """Float64 against 120 digits, for concentrations from e^-80 to e^80."""
    with mpmath.workdps(120):
        alpha = [mpmath.exp(x) for x in row]
        a0 = mpmath.fsum(alpha)
        log_beta = mpmath.fsum(map(mpmath.loggamma, alpha)) - mpmath.loggamma(a0)
        entropy = (
            log_beta
            + (a0 - 3) * mpmath.digamma(a0)
            - mpmath.fsum((a - 1) * mpmath.digamma(a) for a in alpha)
        )
        mean = [a / a0 for a in alpha]
        expected_entropy = -mpmath.fsum(
            m * (mpmath.digamma(a + 1) - mpmath.digamma(a0 + 1))
            for m, a in zip(mean, alpha, strict=True)
        )
        mutual = -mpmath.fsum(m * mpmath.log(m) for m in mean) - expected_entropy
    d = Dirichlet(torch.tensor(row, dtype=torch.float64))
    assert float(d.differential_entropy) == pytest.approx(float(entropy), rel=1e-9)
    assert float(d.mutual_information) == pytest.approx(float(mutual), rel=1e-6, abs=1e-14)


def test_kl_of_large_concentrations_matches_mpmath():
    a, b = (40.0, 39.0, 20.0), (39.5, 39.0, 21.0)
    with mpmath.workdps(120):
        alpha, beta = [mpmath.exp(x) for x in a], [mpmath.exp(x) for x in b]
        a0, b0 = mpmath.fsum(alpha), mpmath.fsum(beta)
        value = (
            mpmath.fsum(map(mpmath.loggamma, beta))
            - mpmath.loggamma(b0)
            - mpmath.fsum(map(mpmath.loggamma, alpha))
            + mpmath.loggamma(a0)
            + mpmath.fsum(
                (x - y) * (mpmath.digamma(x) - mpmath.digamma(a0))
                for x, y in zip(alpha, beta, strict=True)
            )
        )
    ours = Dirichlet(torch.tensor(a, dtype=torch.float64)).kl(
        Dirichlet(torch.tensor(b, dtype=torch.float64))
    )
    assert float(ours) == pytest.approx(float(value), rel=1e-9)


def test_expectations_agree_with_monte_carlo():
    alpha = torch.tensor([4.0, 1.2, 0.6], dtype=torch.float64)
    draws = torch.from_numpy(np.random.default_rng(0).dirichlet(alpha.numpy(), 200_000))
    entropies = -(draws * draws.clamp_min(1e-300).log()).sum(-1)
    d = Dirichlet(alpha.log())
    error = 4 * float(entropies.std()) / math.sqrt(len(draws))
    assert float(d.expected_entropy) == pytest.approx(float(entropies.mean()), abs=error)
    torch.testing.assert_close(d.variance, draws.var(0), rtol=2e-2, atol=1e-4)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-80, 80, width=32), min_size=2, max_size=10))
def test_values_and_gradients_are_finite_in_float32(row):
    log_alpha = torch.tensor([row], dtype=torch.float32, requires_grad=True)
    d = Dirichlet(log_alpha)
    other = Dirichlet(log_alpha.detach().flip(-1))
    values = [getattr(d, name) for name in SCALARS] + [d.kl(other), other.kl(d), d.kl_to_uniform()]
    for value in [*values, d.mean.sum(-1), d.variance.sum(-1), d.expected_log[..., 0]]:
        assert torch.isfinite(value).all()
        (gradient,) = torch.autograd.grad(value.sum(), log_alpha, retain_graph=True)
        assert torch.isfinite(gradient).all()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-80, 80, width=32), min_size=2, max_size=10))
def test_invariants_hold_in_float32(row):
    d = Dirichlet(torch.tensor([row], dtype=torch.float32))
    assert (d.expected_entropy >= 0).all()
    assert (d.mutual_information >= 0).all()
    total = d.expected_entropy + d.mutual_information
    torch.testing.assert_close(total, d.entropy_of_mean, rtol=1e-4, atol=2e-5)


def test_entropy_beyond_the_range_of_exp():
    """ln alpha of 200 overflows float32 as alpha, but not as a logarithm."""
    huge = Dirichlet(torch.tensor([200.0, 199.0, 150.0]))
    exact = Dirichlet(huge.log_alpha.double())
    assert torch.isfinite(huge.differential_entropy)
    torch.testing.assert_close(
        huge.differential_entropy.double(), exact.differential_entropy, rtol=1e-5, atol=0
    )


def test_gradients_against_finite_differences():
    log_alpha = torch.tensor([[-2.0, 0.5, 3.2, 3.3]], dtype=torch.float64, requires_grad=True)
    other = Dirichlet(torch.tensor([[1.0, -0.5, 2.0, 0.1]], dtype=torch.float64))
    for name in SCALARS:
        assert torch.autograd.gradcheck(lambda x, n=name: getattr(Dirichlet(x), n), log_alpha)
    assert torch.autograd.gradcheck(lambda x: Dirichlet(x).kl(other), log_alpha)


def test_batched_shapes():
    d = Dirichlet(torch.zeros(2, 5, 3))
    assert d.mean.shape == d.variance.shape == d.alpha.shape == (2, 5, 3)
    assert all(getattr(d, name).shape == (2, 5) for name in SCALARS)


def test_kl_between_different_numbers_of_classes_is_rejected():
    with pytest.raises(ValueError, match="3 and 4 classes"):
        Dirichlet(torch.zeros(3)).kl(Dirichlet(torch.zeros(4)))


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 2e-6), (torch.float64, 2e-13)])
@pytest.mark.parametrize(
    "log_x", [-80.0, -3.0, 0.0, 1.0, 3.2, 3.218, 3.219, 3.24, 5.0, 20.0, 80.0, 200.0]
)
def test_trigamma_and_its_residual_match_mpmath(log_x, dtype, accuracy):
    """Values and derivatives from e^-80 to e^200, including the threshold of the series."""
    ours = torch.tensor(log_x, dtype=dtype, requires_grad=True)
    with mpmath.workdps(200):
        x = mpmath.exp(float(ours.detach()))
        one, two = mpmath.psi(1, x), mpmath.psi(2, x)
        expected = {
            log_trigamma: (mpmath.log(one), x * two / one),
            trigamma_residual: (1 / one - x + 0.5, x * (-two / one**2 - 1)),
        }
    for function, (value, slope) in expected.items():
        computed = function(ours)
        (gradient,) = torch.autograd.grad(computed, ours)
        assert float(computed.detach()) == pytest.approx(float(value), rel=accuracy, abs=accuracy)
        assert float(gradient) == pytest.approx(float(slope), rel=accuracy, abs=accuracy)


def test_trigamma_in_worked_numbers():
    x = torch.tensor([1.0, 3.12693, 1.69315, 1.31326], dtype=torch.float64)
    expected = [math.pi**2 / 6, 0.376286, 0.797394, 1.11857]
    assert log_trigamma(x.log()).exp().tolist() == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("log_alpha", [[800.0, 800.0], [705.0, 3.0], [-800.0, 2.0]])
def test_kl_to_itself_is_zero_for_any_concentration(log_alpha):
    d = Dirichlet(torch.tensor([log_alpha], dtype=torch.float64, requires_grad=True))
    assert d.kl(d).tolist() == [0]
    other = Dirichlet(torch.tensor([log_alpha], dtype=torch.float64) + torch.tensor([0.0, 1e-3]))
    assert torch.isfinite(d.kl(other))
    (gradient,) = torch.autograd.grad(d.kl(other).sum(), d.log_alpha)
    assert torch.isfinite(gradient).all()


def textbook_kl(log_alpha):
    """KL(Dir(α) ‖ Dir(1)) as usually written; cancels for large α."""
    alpha = log_alpha.exp()
    total = alpha.sum(-1, keepdim=True)
    terms = (alpha - 1) * (alpha.digamma() - total.digamma()) - alpha.lgamma()
    return total.squeeze(-1).lgamma() + terms.sum(-1) - math.lgamma(log_alpha.shape[-1])


@pytest.mark.parametrize("classes", [2, 5, 150])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-7), (torch.float32, 2e-4)])
def test_kl_to_uniform_agrees_with_automatic_differentiation(classes, dtype, rtol):
    generator = torch.Generator().manual_seed(0)
    rows = 2 * torch.randn(100, classes, dtype=torch.float64, generator=generator)
    exact, ours = rows.clone().requires_grad_(), rows.to(dtype).requires_grad_()
    expected, value = textbook_kl(exact), Dirichlet(ours).kl_to_uniform()
    torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=10 * rtol)
    (wanted,) = torch.autograd.grad(expected.sum(), exact)
    (gradient,) = torch.autograd.grad(value.sum(), ours)
    torch.testing.assert_close(gradient.double(), wanted, rtol=10 * rtol, atol=10 * rtol)


@pytest.mark.parametrize(
    "row", [[-12.0, 0.3, 4.0], [3.2, 3.25, -1.0], [20.0, 19.0, -3.0], [60.0] * 4]
)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-7), (torch.float32, 1e-5)])
def test_gradient_of_the_kl_to_uniform_matches_mpmath(row, dtype, rtol):
    """On both sides of the change to the asymptotic series, and where the textbook formula cancels."""
    log_alpha = torch.tensor([row], dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(Dirichlet(log_alpha).kl_to_uniform().sum(), log_alpha)
    with mpmath.workdps(80):
        alpha = [mpmath.exp(mpmath.mpf(x)) for x in log_alpha[0].tolist()]
        total = mpmath.fsum(alpha)
        rest = (total - len(alpha)) * mpmath.psi(1, total)
        expected = [float(a * ((a - 1) * mpmath.psi(1, a) - rest)) for a in alpha]
    # α in float32 limits the accuracy of differences between classes.
    scale = max(map(abs, expected))
    assert gradient[0].tolist() == pytest.approx(expected, rel=rtol, abs=rtol * scale)


def test_many_rows_are_computed_as_few_are():
    """`kl_to_uniform` processes them in chunks."""
    log_alpha = torch.randn(700, 150, generator=torch.Generator().manual_seed(0)).requires_grad_()
    whole = Dirichlet(log_alpha).kl_to_uniform()
    rows = torch.stack([Dirichlet(row).kl_to_uniform() for row in log_alpha])
    torch.testing.assert_close(whole, rows)
    ours, theirs = (torch.autograd.grad(value.sum(), log_alpha)[0] for value in (whole, rows))
    torch.testing.assert_close(ours, theirs)
