"""I-EDL: worked numbers, and the determinant against matrices, Monte Carlo and mpmath."""

import math
from functools import partial

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daedl.dirichlet import Dirichlet, log_trigamma
from daedl.methods.edl import EDL
from daedl.methods.i_edl import IEDL, log_det_fisher
from daedl.outputs import Outputs

LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
OUT = Outputs(torch.zeros(1, 2, dtype=torch.float64), LOGITS)
TARGET = torch.tensor([0])


def test_worked_numbers():
    log_alpha = IEDL().log_alpha(LOGITS)
    trigammas = log_trigamma(log_alpha).exp()
    assert trigammas[0].tolist() == pytest.approx([0.376286, 0.797394, 1.11857], abs=5e-6)
    assert float(log_det_fisher(log_alpha)) == pytest.approx(-2.99460, abs=5e-6)
    total = log_trigamma(log_alpha.logsumexp(-1)).exp()
    assert float(total) == pytest.approx(0.177054, abs=5e-7)
    left = (log_det_fisher(log_alpha) - trigammas.log().sum()).exp()
    assert float(left) == pytest.approx(0.149145, abs=5e-7)
    errors = (torch.tensor([1.0, 0.0, 0.0]) - Dirichlet(log_alpha).mean).square()
    variances = Dirichlet(log_alpha).variance
    assert float((trigammas * errors).sum()) == pytest.approx(0.202461, abs=5e-7)
    assert float((trigammas * variances).sum()) == pytest.approx(0.0619089, abs=5e-8)
    # Without determinant and KL.
    expected = 0.202461 + 0.0619089
    assert float(IEDL(fisher_weight=0).loss(OUT, TARGET, 0)) == pytest.approx(expected, abs=1e-6)
    for weight, total in ((0.05, 0.554764), (0.005, 0.420007)):
        method = IEDL(fisher_weight=weight)
        for epoch in (10, 200, math.inf):
            assert float(method.loss(OUT, TARGET, epoch)) == pytest.approx(total, abs=1e-6)
        half = total - 0.140664 / 2
        assert float(method.loss(OUT, TARGET, 5)) == pytest.approx(half, abs=1e-6)


def test_determinant_of_ten_classes():
    flat = torch.zeros(1, 10, dtype=torch.float64)
    assert float(log_det_fisher(flat)) == pytest.approx(3.95720, abs=5e-6)
    one = flat.clone()
    one[0, 3] = math.log(100)
    assert float(log_det_fisher(one)) == pytest.approx(-3.54672, abs=5e-6)


def test_loss_can_be_negative():
    """Without evidence and with a large weight of the determinant."""
    none = Outputs(torch.zeros(1, 2), torch.full((1, 10), -50.0))
    loss = float(IEDL(fisher_weight=1.0).loss(none, TARGET, 10))
    assert loss == pytest.approx(math.pi**2 / 6 * 0.981818 - 3.95720, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 6), min_size=2, max_size=10))
def test_determinant_equals_that_of_the_matrix(row):
    log_alpha = torch.tensor([row], dtype=torch.float64)
    alpha = log_alpha.exp()[0]
    trigamma = partial(torch.special.polygamma, 1)
    matrix = trigamma(alpha).diag() - trigamma(alpha.sum())
    sign, logdet = torch.linalg.slogdet(matrix)
    assert sign == 1
    assert float(log_det_fisher(log_alpha)) == pytest.approx(float(logdet), abs=1e-6)


def test_determinant_agrees_with_the_sampled_covariance_of_log_probabilities():
    torch.manual_seed(0)
    alpha = torch.tensor([3.1, 1.7, 1.3], dtype=torch.float64)
    draws = torch.distributions.Dirichlet(alpha).sample((400_000,)).log()
    sampled = float(torch.logdet(torch.cov(draws.T)))
    # The relative error of each of three variances is about 0.5 percent.
    assert float(log_det_fisher(alpha.log()[None])) == pytest.approx(sampled, abs=0.02)


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float32, 2e-7), (torch.float64, 1e-13)])
@pytest.mark.parametrize(
    "alpha",
    [
        (1.0, 1.0),
        (1.0, 1e30),
        (24.0, 26.0, 25.0),
        (1e30, 1e30, 1e29),
        (1e15, 1.0, 30.0, 1e7),
        (3e6,) * 10,
        (1e6,) * 10,
    ],
)
def test_determinant_matches_mpmath(alpha, dtype, accuracy):
    """The textbook formula is NaN in float32 for ten concentrations that sum to 3e7."""
    log_alpha = torch.tensor([alpha], dtype=dtype).log()
    with mpmath.workdps(100):
        each = [mpmath.exp(float(x)) for x in log_alpha[0]]
        of_sum = mpmath.psi(1, mpmath.fsum(each))
        left = 1 - mpmath.fsum(of_sum / mpmath.psi(1, x) for x in each)
        exact = float(mpmath.fsum(mpmath.log(mpmath.psi(1, x)) for x in each) + mpmath.log(left))
    computed = log_det_fisher(log_alpha)
    assert computed.dtype == dtype
    assert float(computed) == pytest.approx(exact, rel=accuracy, abs=accuracy)


def test_gradient_of_the_determinant():
    small = torch.tensor([[0.0, 0.7, 3.0, 3.4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_det_fisher, small)
    # For large concentrations log |I| = −Σ ln α_c − ln α₀ + ln (C − 1)/2, with gradient −1 − m_c.
    large = torch.tensor([[69.0, 68.0, 66.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(log_det_fisher(large).sum(), large)
    torch.testing.assert_close(gradient, -1 - large.detach().softmax(-1))


def test_gradient_of_the_loss_against_finite_differences():
    logits = torch.tensor([[2.0, 0.0, -1.0], [40.0, -3.0, 26.0]], dtype=torch.float64)
    targets = torch.tensor([0, 1])

    def loss(z):
        return IEDL(fisher_weight=0.05).loss(Outputs(OUT.features, z), targets, 7)

    assert torch.autograd.gradcheck(loss, logits.requires_grad_())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=2, max_size=10))
def test_loss_and_gradient_are_finite_in_float32(row):
    logits = torch.tensor([row], requires_grad=True)
    loss = IEDL().loss(Outputs(torch.zeros(1, 2), logits), TARGET, 10)
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss).all()
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(gradient).all()


def test_half_precision():
    """As under mixed precision; torch has no zeta function for it."""
    logits = LOGITS.bfloat16()
    loss = IEDL().loss(Outputs(logits, logits), TARGET, 0)
    assert loss.dtype == torch.bfloat16
    assert float(loss) == pytest.approx(0.420007 - 0.140664, abs=0.005)


def test_weighted_error_agrees_with_monte_carlo():
    torch.manual_seed(1)
    alpha = IEDL().log_alpha(LOGITS)[0].exp()
    draws = torch.distributions.Dirichlet(alpha).sample((200_000,))
    onehot = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    errors = (torch.special.polygamma(1, alpha) * (onehot - draws).square()).sum(-1)
    computed = float(IEDL(fisher_weight=0).loss(OUT, torch.tensor([1]), 0))
    assert computed == pytest.approx(
        float(errors.mean()), abs=4 * float(errors.std()) / 200_000**0.5
    )


def test_predicts_as_edl():
    ours, edl = IEDL().predict(OUT, None), EDL().predict(OUT, None)
    assert torch.equal(ours.log_alpha, edl.log_alpha)
    far = Outputs(torch.zeros(1, 2), torch.tensor([[-400.0, -250.0, -300.0]]))
    assert IEDL().predict(far, None).labels.tolist() == [1]


def test_published_settings():
    assert IEDL().fisher_weight == 0.005
    assert IEDL(**IEDL.published["cifar10"]).fisher_weight == 0.05
    assert IEDL().reduction == "mean"
    assert IEDL().anneal_epochs == 10
