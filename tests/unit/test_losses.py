"""Losses against worked numbers, Monte Carlo and their properties."""

import pytest
import torch

from daedl.losses import (
    annealed,
    evidential,
    expected_mse,
    masked_kl_to_uniform,
    squared_error,
    uncertain_cross_entropy,
)

LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
TARGET = torch.tensor([0])


@pytest.mark.parametrize(
    ("log_alpha", "mse", "kl"),
    [
        (LOGITS.relu().log1p(), 0.333333, 0.0),
        (torch.nn.functional.softplus(LOGITS).log1p(), 0.448964, 0.140664),
        (LOGITS, 0.0672066, 0.800513),
    ],
    ids=["relu", "softplus", "exp"],
)
def test_worked_numbers(log_alpha, mse, kl):
    assert float(expected_mse(log_alpha, TARGET)) == pytest.approx(mse, abs=5e-7)
    assert float(masked_kl_to_uniform(log_alpha, TARGET)) == pytest.approx(kl, abs=5e-7)


def test_loss_and_gradient_of_the_exponential_parameterisation():
    logits = LOGITS.clone().requires_grad_()
    loss = evidential(logits, TARGET, kl_weight=0.05)
    assert float(loss.detach()) == pytest.approx(0.107232, abs=5e-7)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = torch.tensor([[-0.107605, 0.0808230, -0.0739270]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=5e-7)


def test_reductions_of_two_samples():
    logits = torch.cat([LOGITS, torch.tensor([[0.5, 1.5, -0.5]], dtype=torch.float64)])
    targets = torch.tensor([0, 1])
    each = evidential(logits, targets, 0.05, "none")
    assert each.tolist() == pytest.approx([0.107232, 0.263845], abs=5e-7)
    assert float(evidential(logits, targets, 0.05, "sum")) == pytest.approx(0.371077, abs=1e-6)
    assert float(evidential(logits, targets, 0.05, "mean")) == pytest.approx(0.185538, abs=1e-6)
    with pytest.raises(ValueError, match="'none', 'mean' or 'sum'"):
        evidential(logits, targets, 0.05, "average")


def test_squared_error_is_the_brier_score_of_the_mean():
    assert float(squared_error(LOGITS, TARGET)) == pytest.approx(0.0392055, abs=5e-8)
    both = squared_error(LOGITS.expand(2, 3), torch.tensor([0, 1]), "none")
    # (1 - p_1)^2 + p_0^2 + p_2^2 of p = (0.843795, 0.114195, 0.0420101)
    assert both.tolist() == pytest.approx([0.0392055, 1.498405], abs=5e-6)


@pytest.mark.parametrize(("classes", "value"), [(3, 0.833333), (10, 0.981818)])
def test_expected_mse_without_evidence(classes, value):
    assert float(expected_mse(torch.zeros(1, classes), TARGET)) == pytest.approx(value, abs=1e-6)


def test_expected_mse_agrees_with_monte_carlo():
    torch.manual_seed(0)
    alpha = torch.tensor([2.0, 0.7, 1.5], dtype=torch.float64)
    draws = torch.distributions.Dirichlet(alpha).sample((200_000,))
    onehot = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    errors = (onehot - draws).square().sum(-1)
    ours = float(expected_mse(alpha.log()[None], torch.tensor([1])))
    assert ours == pytest.approx(float(errors.mean()), abs=4 * float(errors.std()) / 200_000**0.5)


def textbook_mse(log_alpha, targets):
    """The sums over classes as in Sensoy et al., from α."""
    alpha = log_alpha.exp()
    total = alpha.sum(-1, keepdim=True)
    truth = torch.nn.functional.one_hot(targets, alpha.shape[-1])
    variance = alpha * (total - alpha) / (total**2 * (total + 1))
    return ((truth - alpha / total) ** 2 + variance).sum(-1)


@pytest.mark.parametrize("classes", [2, 5, 150])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_expected_mse_agrees_with_automatic_differentiation(classes, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    rows = 3 * torch.randn(100, classes, dtype=torch.float64, generator=generator)
    targets = torch.arange(100) % classes
    exact, ours = rows.clone().requires_grad_(), rows.to(dtype).requires_grad_()
    expected, value = textbook_mse(exact, targets), expected_mse(ours, targets, "none")
    torch.testing.assert_close(value.double(), expected, rtol=0, atol=tolerance)
    weights = torch.linspace(0, 2, 100)  # the gradient of each sample is scaled
    (wanted,) = torch.autograd.grad((weights * expected).sum(), exact)
    (gradient,) = torch.autograd.grad((weights * value).sum(), ours)
    torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=tolerance)


def test_gradients_against_finite_differences():
    rows = torch.tensor([[-2.0, 0.5, 3.2, 3.3], [4.0, -1.0, 0.0, 2.0]], dtype=torch.float64)
    targets = torch.tensor([1, 0])
    for loss in (expected_mse, masked_kl_to_uniform):
        assert torch.autograd.gradcheck(lambda x, f=loss: f(x, targets), rows.requires_grad_())


def test_masked_kl_ignores_the_true_class_and_reduces_others_to_one():
    logits = torch.tensor([[3.0, 0.7, -1.2, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = masked_kl_to_uniform(logits, TARGET)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, 0] == 0
    assert gradient[0, 1] > 0 > gradient[0, 2]
    at_one = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(masked_kl_to_uniform(at_one, TARGET), at_one)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


def test_annealing():
    assert [annealed(1.0, t, 10) for t in (0, 5, 10, 200)] == [0.0, 0.5, 1.0, 1.0]
    assert annealed(0.05, 0, 0) == 0.05
    assert annealed(2.0, float("inf"), 10) == 2.0


def test_uncertain_cross_entropy():
    log_alpha = torch.tensor([[5.0, 2.0, 1.5]], dtype=torch.float64).log()
    assert float(uncertain_cross_entropy(log_alpha, TARGET)) == pytest.approx(0.573973, abs=5e-7)
    for classes, value in ((3, 1.5), (10, 2.82897)):  # no evidence
        loss = uncertain_cross_entropy(torch.zeros(1, classes, dtype=torch.float64), TARGET)
        assert float(loss) == pytest.approx(value, abs=5e-6)


def test_epsilon_of_the_published_code_is_negligible():
    """It adds 1e-6 to alpha, and again inside the KL."""
    alpha = LOGITS.exp()
    assert float(expected_mse((alpha + 1e-6).log(), TARGET)) == pytest.approx(0.0672067, abs=5e-8)
    kl = masked_kl_to_uniform((alpha + 2e-6).log(), TARGET)
    assert float(kl) == pytest.approx(0.800504, abs=5e-7)
