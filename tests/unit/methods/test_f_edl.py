"""F-EDL: worked numbers, moments of the mixture, heads."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import daedl
from daedl import losses
from daedl.methods.f_edl import FEDL, FlexibleDirichlet
from daedl.networks import MLP
from daedl.networks.headed import Headed
from daedl.outputs import Outputs
from daedl.spectral import SpectralNorm, normalization

TARGET = torch.tensor([0])


def rows(g1, p, tau):
    """Logits (1, 3, C) of given g₁, p and τ, in float64."""
    g1, p = torch.as_tensor(g1, dtype=torch.float64), torch.as_tensor(p, dtype=torch.float64)
    g3 = torch.full_like(g1, math.log(math.expm1(tau)))
    return torch.stack([g1, p.log(), g3])[None]


def outputs(logits):
    return Outputs(torch.zeros(len(logits), 2, dtype=logits.dtype), logits)


WORKED = outputs(rows([2.0, 0.0, -1.0], [0.7, 0.2, 0.1], 2.0))


def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(16, 16))


def test_worked_numbers():
    flexible = FlexibleDirichlet.of(WORKED.logits)
    p = FEDL().predict(WORKED, None)
    assert p.probs[0].tolist() == pytest.approx([0.817059, 0.130149, 0.0527919], abs=1e-6)
    assert float(flexible.averaged.precision) == pytest.approx(8.75694 + 2, abs=5e-6)
    assert float(FEDL().loss(WORKED, TARGET, 0)) == pytest.approx(0.234338, abs=5e-7)
    assert float(p.epistemic) == pytest.approx(0.0411451, abs=5e-8)
    variances = flexible.variance[0].tolist()
    assert variances == pytest.approx([0.0193556, 0.0146897, 0.00709979], abs=5e-8)
    assert float(p.aleatoric) == pytest.approx(0.271543, abs=5e-7)
    total = 1 - float(p.probs.square().sum())
    assert total == pytest.approx(0.312688, abs=5e-7)
    assert float(p.aleatoric + p.epistemic) == pytest.approx(total, rel=1e-12)
    assert p.log_alpha is None
    assert FEDL().reduction == "sum"


def test_moments_agree_with_monte_carlo():
    torch.manual_seed(0)
    alpha, p, tau = torch.tensor([3.0, 0.8, 1.5]), torch.tensor([0.2, 0.7, 0.1]), 2.5
    chosen = torch.multinomial(p, 200_000, replacement=True)
    draws = torch.distributions.Dirichlet(alpha + tau * torch.eye(3)[chosen]).sample().double()
    computed = FEDL().predict(outputs(rows(alpha.log(), p, tau)), None)
    tolerance = 4 / math.sqrt(len(draws))  # times a standard deviation: four standard errors
    for mean, values in zip(computed.probs[0], draws.T, strict=True):
        assert float(mean) == pytest.approx(
            float(values.mean()), abs=tolerance * float(values.std())
        )
    gini = 1 - draws.square().sum(-1)
    assert float(computed.aleatoric) == pytest.approx(
        float(gini.mean()), abs=tolerance * float(gini.std())
    )
    spread = (draws - draws.mean(0)).square().sum(-1)
    assert float(computed.epistemic) == pytest.approx(
        float(spread.mean()), abs=tolerance * float(spread.std())
    )
    errors = (torch.eye(3)[1] - draws).square().sum(-1)
    loss = FEDL().loss(outputs(rows(alpha.log(), p, tau)), torch.tensor([1]), 0)
    expected = float(errors.mean()) + 0.2**2 + 0.3**2 + 0.1**2
    assert float(loss) == pytest.approx(expected, abs=tolerance * float(errors.std()))


def test_dispersion_one_with_allocation_equal_to_the_mean_is_a_dirichlet():
    """τ = 1, p = m: the loss is the expected MSE of Dir(α) plus the squared error of m."""
    torch.manual_seed(2)
    for g1 in 2 * torch.randn(10, 4, dtype=torch.float64):
        out = outputs(rows(g1, g1.softmax(-1), 1.0))
        dirichlet = daedl.dirichlet.Dirichlet(g1)
        expected = losses.expected_mse(g1[None], TARGET) + losses.squared_error(g1[None], TARGET)
        assert float(FEDL().loss(out, TARGET, 0)) == pytest.approx(float(expected), rel=1e-10)
        p = FEDL().predict(out, None)
        torch.testing.assert_close(p.probs[0], dirichlet.mean)
        assert float(p.epistemic) == pytest.approx(float(dirichlet.variance.sum()), rel=1e-10)


def test_scores_of_certain_predictions_are_accurate_in_float32():
    """Scores of order e⁻⁴⁰ against 60 digits; 1 − Σ μ² and 1 − p would round to 0."""
    logits = torch.tensor([[[20.0, -21.0, -22.0], [41.0, 1.0, 0.0], [0.5, 0.5, 0.5]]])
    with mpmath.workdps(60):
        alpha, p = ([mpmath.exp(float(x)) for x in row] for row in logits[0, :2])
        p = [x / mpmath.fsum(p) for x in p]
        tau = mpmath.log1p(mpmath.exp(0.5))
        s = mpmath.fsum(alpha) + tau
        mu = [(a + tau * x) / s for a, x in zip(alpha, p, strict=True)]
        variances = [
            m * (1 - m) / (s + 1) + tau**2 * x * (1 - x) / (s * (s + 1))
            for m, x in zip(mu, p, strict=True)
        ]
        epistemic = mpmath.fsum(variances)
        aleatoric = 1 - mpmath.fsum(m * m for m in mu) - epistemic
    computed = FEDL().predict(outputs(logits), None)
    assert float(computed.epistemic) == pytest.approx(float(epistemic), rel=1e-5)
    assert float(computed.aleatoric) == pytest.approx(float(aleatoric), rel=1e-5)


def test_class_is_that_of_the_mean_not_of_the_logits():
    """Little evidence for class 0, large dispersion allocated to class 2."""
    out = outputs(rows([0.0, -3.0, -3.0], [0.1, 0.1, 0.8], 20.0))
    assert FEDL().predict_labels(out).tolist() == [2]
    assert FEDL().predict(out, None).labels.tolist() == [2]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-80, 80, width=32), min_size=3, max_size=3), st.floats(-80, 80, width=32))
def test_loss_gradient_and_scores_are_finite_in_float32(row, dispersion):
    g1 = torch.tensor(row)
    logits = torch.stack([g1, g1.flip(-1), torch.full((3,), dispersion)])[None].requires_grad_()
    loss = FEDL().loss(outputs(logits), TARGET, 0)
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss).all()
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(gradient).all()
    p = FEDL().predict(outputs(logits.detach()), None)
    for score in p.scores().values():
        assert torch.isfinite(score).all()
        assert (score >= 0).all()
    assert float(p.probs.sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dispersion", [-1000.0, 1000.0])
def test_extreme_dispersion(dispersion):
    """The mean tends to that of Dir(α) for small τ, and to p for large τ."""
    logits = torch.tensor([[[2.0, 0.0, -1.0], [0.0, 2.0, 0.0], [dispersion] * 3]])
    logits.requires_grad_()
    loss = FEDL().loss(outputs(logits), TARGET, 0)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(gradient).all()
    computed = FEDL().predict(outputs(logits.detach()), None).probs[0]
    expected = logits.detach()[0, 0 if dispersion < 0 else 1].softmax(-1)
    torch.testing.assert_close(computed, expected, atol=0.01, rtol=0)


def test_gradients_against_finite_differences():
    torch.manual_seed(3)
    logits = 3 * torch.randn(4, 3, 5, dtype=torch.float64)
    # On both sides of the branch of ln softplus.
    logits[0, 2], logits[1, 2] = -20.0, -14.0
    targets = torch.arange(4)

    def loss_and_scores(z):
        flexible = FlexibleDirichlet.of(z)
        loss = FEDL().loss(outputs(z), targets, 0)
        return loss, flexible.variance.sum(-1), flexible.expected_gini

    assert torch.autograd.gradcheck(loss_and_scores, logits.requires_grad_())


def test_heads_are_added_and_not_normalised():
    plain = network()
    prepared = FEDL().prepare(plain)
    assert isinstance(prepared, Headed)
    assert prepared.plain is plain
    assert normalization(prepared.inner) == SpectralNorm()
    assert normalization(prepared.head) is None
    images = torch.randn(5, 4)
    inner, out = prepared.eval().inner(images), prepared(images)
    assert torch.equal(out.features, inner.features)
    assert torch.equal(out.logits[:, 0], inner.logits)
    assert torch.equal(out.logits[:, 1], prepared.head.allocation(inner.features))
    assert out.logits.shape == (5, 3, 3)
    assert (out.logits[:, 2] == out.logits[:, 2, :1]).all()
    assert prepared.head.allocation[0].out_features == 256


def test_network_with_heads_can_be_normalised_later():
    free = FEDL(spectral=None).prepare(network())
    assert normalization(free) is None
    assert FEDL().prepare(free) is free
    assert normalization(free.inner) == SpectralNorm()
    assert normalization(free.head) is None


def test_heads_have_the_dtype_of_the_network():
    prepared = FEDL(head_width=8).prepare(network().double())
    assert prepared(torch.randn(2, 4).double()).logits.dtype == torch.float64
    assert prepared.head.dispersion[0].out_features == 8
