"""R-EDL and Re-EDL: worked numbers, and relations to EDL."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Dirichlet as Reference
from torch.distributions import kl_divergence

from daedl import losses
from daedl.dirichlet import Dirichlet
from daedl.methods.edl import EDL
from daedl.methods.r_edl import REDL
from daedl.methods.re_edl import ReEDL
from daedl.outputs import Outputs

LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
OUT = Outputs(torch.zeros(1, 2, dtype=torch.float64), LOGITS)
TARGET = torch.tensor([0])


@pytest.mark.parametrize(
    ("prior", "probs", "mse", "mass"),
    [
        (0.1, [0.648619, 0.231014, 0.120367], 0.191324, 0.0873786),
        (0.8, [0.528963, 0.269846, 0.201192], 0.335171, 0.433735),
    ],
)
def test_re_edl(prior, probs, mse, mass):
    method = ReEDL(prior=prior)
    p = method.predict(OUT, None)
    assert p.probs[0].tolist() == pytest.approx(probs, abs=1e-6)
    assert prior * float(p.dirichlet.vacuity) == pytest.approx(mass, abs=5e-7)
    assert float(p.epistemic) == pytest.approx(math.log(mass / (3 * prior)), abs=1e-6)
    for epoch in (0, 10, math.inf):
        assert float(method.loss(OUT, TARGET, epoch)) == pytest.approx(mse, abs=5e-7)


def test_r_edl():
    method = REDL()
    kl = method.divergence(method.log_alpha(LOGITS), TARGET)
    assert float(kl) == pytest.approx(1.08840, abs=5e-6)
    for epoch, weight in ((0, 0.0), (5, 0.5), (10, 1.0), (math.inf, 1.0)):
        expected = 0.191324 + weight * 1.08840
        assert float(method.loss(OUT, TARGET, epoch)) == pytest.approx(expected, abs=5e-6)
    assert torch.equal(method.predict(OUT, None).log_alpha, ReEDL().predict(OUT, None).log_alpha)


def test_divergence_against_torch():
    torch.manual_seed(0)
    logits, targets = 4 * torch.randn(20, 5, dtype=torch.float64), torch.arange(20) % 5
    method = REDL(prior=0.3)
    alpha = method.log_alpha(logits).exp()
    alpha[torch.arange(20), targets] = 0.3
    expected = kl_divergence(Reference(alpha), Reference(torch.full_like(alpha, 0.3)))
    torch.testing.assert_close(method.divergence(method.log_alpha(logits), targets), expected)


def test_r_edl_without_kl_is_re_edl():
    assert torch.equal(REDL(kl_weight=0.0).loss(OUT, TARGET, 10), ReEDL().loss(OUT, TARGET, 10))


def test_prior_weight_one_is_edl_without_the_variance():
    torch.manual_seed(1)
    logits, targets = 3 * torch.randn(50, 4, dtype=torch.float64), torch.arange(50) % 4
    out = Outputs(torch.zeros(50, 1, dtype=torch.float64), logits)
    relaxed, edl = REDL(prior=1.0), EDL()
    log_alpha = edl.log_alpha(logits)
    torch.testing.assert_close(relaxed.log_alpha(logits), log_alpha)
    kl = losses.masked_kl_to_uniform(log_alpha, targets, "none")
    torch.testing.assert_close(relaxed.divergence(log_alpha, targets), kl)
    variance = Dirichlet(log_alpha).variance.sum(-1)
    for epoch in (0, 4, 10):
        expected = edl.loss(out, targets, epoch) - variance
        torch.testing.assert_close(relaxed.loss(out, targets, epoch), expected)


def test_divergence_ignores_the_true_class_and_reduces_other_evidence():
    logits = LOGITS.clone().requires_grad_()
    method = REDL()
    (gradient,) = torch.autograd.grad(method.divergence(method.log_alpha(logits), TARGET), logits)
    assert gradient[0, 0] == 0
    assert (gradient[0, 1:] > 0).all()


def test_labels_come_from_the_logits_if_all_evidence_underflows():
    logits = torch.tensor([[-400.0, -250.0, -300.0], [-500.0, -300.0, -200.0]])
    for method in (REDL(), ReEDL()):
        prediction = method.predict(Outputs(torch.zeros(2, 1), logits), None)
        assert (prediction.log_alpha == math.log(0.1)).all()
        assert prediction.labels.tolist() == [1, 2]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=2, max_size=10),
    st.floats(1e-3, 10),
)
def test_losses_and_gradients_are_finite_in_float32(row, prior):
    logits = torch.tensor([row], requires_grad=True)
    for method in (REDL(prior=prior), ReEDL(prior=prior)):
        loss = method.loss(Outputs(torch.zeros(1, 2), logits), TARGET, 10)
        assert loss.dtype == torch.float32
        assert torch.isfinite(loss).all()
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert torch.isfinite(gradient).all()


def test_gradients_against_finite_differences():
    logits = torch.tensor([[2.0, 0.0, -1.0], [30.0, -3.0, 26.0]], dtype=torch.float64)
    targets = torch.tensor([0, 1])
    for method in (REDL(), ReEDL(prior=0.8)):

        def loss(z, method=method):
            return method.loss(Outputs(OUT.features, z), targets, 7)

        assert torch.autograd.gradcheck(loss, logits.requires_grad_())


def test_published_settings():
    assert ReEDL().prior == REDL().prior == 0.1
    assert ReEDL(**ReEDL.published["cifar10"]).prior == 0.8
    assert REDL.published.get("cifar10", {}) == {}
    assert ReEDL().reduction == REDL().reduction == "mean"
