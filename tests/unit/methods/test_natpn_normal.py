"""NatPN for numbers: posterior by sufficient statistics, limits of the evidence, phases."""

import pytest
import torch

import daedl
from daedl.methods.regression import build
from daedl.methods.regression.natpn import NatPNNormal
from daedl.networks import MLP
from daedl.outputs import Outputs


def outputs(mean, log_variance, log_q):
    logits = torch.tensor([[[mean], [log_variance], [log_q]]], dtype=torch.float64)
    return Outputs(torch.zeros(1, 16, dtype=torch.float64), logits)


def test_posterior_averages_the_sufficient_statistics():
    """With α₀ = ν₀ / 2 and β₀ = ν₀ std² / 2, the prior of the released code, moments are weighted means."""
    method = NatPNNormal(
        prior_nu=5, prior_alpha=2.5, prior_std=(5 * 9 / 2 / 1.5) ** 0.5, budget="constant"
    )
    nig = method.nig(outputs(2.0, 0.4, 1.0))
    n = torch.tensor(1.0, dtype=torch.float64).exp()
    first = n * 2 / (n + 5)
    second = (n * (4 + torch.tensor(0.4, dtype=torch.float64).exp()) + 5 * 9) / (n + 5)
    assert nig.gamma.item() == pytest.approx(first.item())
    assert nig.log_nu.exp().item() == pytest.approx((n + 5).item())
    assert nig.log_alpha.exp().item() == pytest.approx(((n + 5) / 2).item())
    beta = (n + 5) / 2 * (second - first**2)
    assert nig.log_beta.exp().item() == pytest.approx(beta.item())


def test_without_evidence_it_is_the_prior_and_with_much_the_network():
    method = build("natpn-normal")
    far = method.nig(outputs(3.0, -1.0, -1e6))
    assert far.gamma.item() == pytest.approx(0, abs=1e-9)
    assert far.aleatoric.item() == pytest.approx(100)
    near = method.nig(outputs(3.0, -1.0, 1e6))
    assert near.gamma.item() == pytest.approx(3)
    assert near.variance.log().item() == pytest.approx(-1, abs=1e-6)


def test_flow_is_trained_alone_before_and_after_the_network():
    torch.manual_seed(0)
    inputs = torch.randn(128, 3)
    model = daedl.Regressor(MLP(3, 1, hidden=(8,)), NatPNNormal(warmup_epochs=1))
    history = daedl.fit(
        model, (inputs, inputs[:, 0]), max_epochs=2, accelerator="cpu", progress=False
    )
    phases = [epoch.phase for epoch in history.epochs]
    assert phases == ["warm-up", "training", "training", "fine-tuning", "fine-tuning"]
