"""SNGP: worked numbers, variance against Gaussian processes, head."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct
from torch import nn

import daedl
from daedl.methods import Softmax
from daedl.methods import sngp as module
from daedl.methods.sngp import SNGP, Covariance, GaussianProcessHead
from daedl.networks import MLP, ConvNet, Headed
from daedl.outputs import Outputs
from daedl.spectral import SpectralNorm, normalization

fit = partial(daedl.fit, accelerator="cpu", progress=False)
SMALL = SNGP(latent=8, width=64)
LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)


def model(method=SMALL):
    torch.manual_seed(0)
    return daedl.Classifier(MLP(4, 3, hidden=(16, 16)), method)


@pytest.fixture(scope="module")
def trained(blobs):
    classifier = model(SNGP(latent=16, width=256, length_scale=5.0))
    return classifier, fit(classifier, blobs, blobs, max_epochs=10, learning_rate=1e-2)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def of_variance(variance):
    """A covariance with this variance at φ = 1."""
    return Covariance(torch.tensor([[variance**-0.5]], dtype=torch.float64))


def out(logits):
    return Outputs(torch.ones(len(logits), 1, dtype=logits.dtype), logits)


def test_worked_numbers():
    p = SNGP().predict(out(LOGITS), of_variance(0.5))
    factor = 0.301511
    weights = [math.exp(factor * z) for z in (2, 0, -1)]
    assert p.probs[0].tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-6)
    u = 3 / (3 + sum(weights))
    assert p.epistemic.item() == pytest.approx(math.log(u / (1 - u)), abs=1e-6)
    assert torch.sigmoid(p.epistemic).item() == pytest.approx(u, abs=1e-6)
    loss = SNGP().loss(out(LOGITS), torch.tensor([0]), 0)
    assert loss.item() == pytest.approx(0.169846, abs=5e-7)


def test_zero_variance_or_factor_is_softmax():
    expected = Softmax().predict(out(LOGITS), None).probs
    for method, variance in ((SNGP(), 1e-30), (SNGP(mean_field=0), 100.0)):
        p = method.predict(out(LOGITS), of_variance(variance))
        torch.testing.assert_close(p.probs, expected)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
@settings(max_examples=30, deadline=None)
def test_scores_increase_with_the_variance(one, other):
    less, more = sorted((one, other))
    p, q = (SNGP().predict(out(LOGITS), of_variance(variance)) for variance in (less, more))
    assert p.epistemic <= q.epistemic
    assert p.aleatoric <= q.aleatoric
    assert q.epistemic < 0  # ln C − ln Σ exp(z), where Σ z > 0
    assert p.labels.item() == q.labels.item() == 0


def test_labels_come_from_the_logits_if_probabilities_tie():
    logits = torch.tensor([[0.0, 1.0, 1.0 + 1e-6]])
    p = SNGP(mean_field=1e18).predict(out(logits), of_variance(500.0))
    assert (p.probs[0] == p.probs[0, 0]).all()
    assert p.labels.item() == 2


@pytest.mark.parametrize("ridge", [1.0, 2 / 1024])
def test_variance_equals_that_of_the_inverse_matrix(ridge, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 70)  # three blocks
    features, others = normal(200, 30).float(), normal(50, 30, seed=1).float()
    computed = SNGP(ridge=ridge).fit(Outputs(features, features[:, :3]), torch.zeros(200))
    wide = features.double().numpy()
    inverse = np.linalg.inv(wide.T @ wide + ridge * np.eye(30))
    expected = np.einsum("nd,de,ne->n", others.double().numpy(), inverse, others.double().numpy())
    assert computed.factor.dtype == computed(others).dtype == torch.float64
    np.testing.assert_allclose(computed(others).numpy(), expected, rtol=1e-9)


def test_variance_equals_that_of_a_gaussian_process():
    """In function space: r v is the posterior variance under the kernel φᵀφ′ with noise r."""
    features, others, ridge = normal(40, 12), normal(20, 12, seed=1), 0.3
    process = GaussianProcessRegressor(
        DotProduct(sigma_0=0, sigma_0_bounds="fixed"), alpha=ridge, optimizer=None
    ).fit(features.numpy(), np.zeros(40))
    expected = process.predict(others.numpy(), return_std=True)[1] ** 2
    computed = ridge * Covariance.fit(features, ridge)(others)
    np.testing.assert_allclose(computed.numpy(), expected, rtol=1e-8)


def test_ridge_corresponds_to_the_released_code():
    """Released: r = 1 and r φᵀ (ΦᵀΦ + r I)⁻¹ φ for φ = cos(W h + b), without √(2 / D)."""
    cosines, width = normal(300, 1024).cos(), 1024
    inverse = torch.linalg.inv(cosines.T @ cosines + torch.eye(width, dtype=torch.float64))
    expected = ((cosines[:9] @ inverse) * cosines[:9]).sum(1)
    scaled = math.sqrt(2 / width) * cosines
    torch.testing.assert_close(Covariance.fit(scaled, SNGP().ridge)(scaled[:9]), expected)


def test_variance_decreases_with_samples_from_that_of_the_prior():
    features, others = normal(30, 12), normal(20, 12, seed=1)
    before, after = Covariance.fit(features[:10], 0.5), Covariance.fit(features, 0.5)
    prior = Covariance.fit(features[:0], 0.5)
    torch.testing.assert_close(prior(others), others.square().sum(1) / 0.5)
    assert (after(others) < before(others)).all()
    assert (before(others) < prior(others)).all()


def test_random_features_approximate_the_rbf_kernel():
    torch.manual_seed(0)
    head = GaussianProcessHead(6, 40_000, 3.0, 0, 3)
    latent = 5 + 2 * normal(12, 6, dtype=torch.float32)
    given_ = head(Outputs(torch.zeros(12, 2), latent))
    # LayerNorm with initial weights, in NumPy.
    wide = latent.double().numpy()
    standard = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    squared = ((standard[:, None] - standard[None]) ** 2).sum(-1)
    gram = (given_.features @ given_.features.T).detach().numpy()
    np.testing.assert_allclose(gram, np.exp(-squared / (2 * 3.0**2)), atol=0.03)
    torch.testing.assert_close(given_.logits, given_.features @ head.output.weight.T)


def test_frequencies_have_their_own_seed_and_are_not_trained(blobs):
    heads = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        heads.append(GaussianProcessHead(8, 64, 2.0, seed, 3))
    first, same, other = heads
    assert torch.equal(first.frequencies, same.frequencies)
    assert torch.equal(first.phases, same.phases)
    assert not torch.equal(first.frequencies, other.frequencies)
    # The global generator was not used.
    assert torch.equal(first.output.weight, other.output.weight)
    assert first.frequencies.std().item() == pytest.approx(1 / 2, rel=0.1)
    assert 0 <= first.phases.min() < 0.5
    assert 6 < first.phases.max() < 2 * math.pi
    classifier = model()
    before = classifier.network.head.frequencies.clone()
    fit(classifier, blobs, max_epochs=1)
    assert torch.equal(classifier.network.head.frequencies, before)
    names = [name for name, _ in classifier.network.named_parameters()]
    assert not any("frequencies" in name or "phases" in name for name in names)


def test_network_is_normalised_as_published():
    classifier = model()
    network = classifier.network
    assert isinstance(network, Headed)
    assert network(torch.zeros(5, 4)).features.shape == (5, 64)
    assert network.num_features == 64
    published = SpectralNorm(norm="operator", coefficient=6.0, soft=True)
    assert normalization(network) == published
    assert normalization(network.head) is None
    assert normalization(SNGP(spectral=None, latent=4).prepare(MLP(4, 3))) is None
    assert normalization(SMALL.prepare(ConvNet(1, 3, image_size=8, channels=4))) == published


def test_prediction_after_training_follows_the_formula(trained, blobs):
    classifier, history = trained
    losses = [epoch.val_loss for epoch in history.epochs]
    assert min(losses) < 0.6 * losses[0]
    inside = classifier.predict(blobs[0])
    assert daedl.metrics.accuracy(inside.labels, blobs[1]) > 0.8
    outside = classifier.predict(40 * normal(200, 4, dtype=torch.float32))
    for name, score in inside.scores().items():
        assert daedl.metrics.auroc(score, outside.scores()[name]) > 0.8, name
    with torch.no_grad():
        given_ = classifier.network.eval()(blobs[0])
    variance = classifier.fitted(given_.features)
    expected = (given_.logits / (1 + 20 * variance[:, None]).sqrt()).softmax(-1).float()
    torch.testing.assert_close(inside.probs, expected, atol=1e-5, rtol=1e-4)


def test_covariance_stays_in_float64():
    covariance = Covariance.fit(normal(30, 5), 1.0)
    factor = covariance.factor.clone()
    for change in (nn.Module.float, nn.Module.half, nn.Module.double):
        assert torch.equal(change(covariance).factor, factor)
    single = normal(4, 5, dtype=torch.float32)
    assert covariance(single).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [80.0, 1e-30])
def test_extreme_logits_and_variances_are_finite(size, dtype):
    logits = size * normal(20, 3, dtype=dtype).sign().requires_grad_()
    loss = SNGP().loss(out(logits), torch.arange(20) % 3, 0)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(gradient).all()
    for variance in (1e-30, 1.0, 1e30):
        p = SNGP().predict(out(logits.detach()), of_variance(variance))
        assert p.probs.dtype == p.epistemic.dtype == dtype
        assert torch.isfinite(p.probs).all()
        assert all(torch.isfinite(score).all() for score in p.scores().values())


def test_variance_is_larger_away_from_the_clusters():
    """With the default kernel, for latents of ten clusters and latents of no cluster."""
    torch.manual_seed(0)
    head = SNGP().head(num_classes=10)
    centres = normal(10, 128, dtype=torch.float32)
    known = centres.repeat(400, 1) + 0.3 * normal(4000, 128, seed=1, dtype=torch.float32)
    others = normal(500, 128, seed=2, dtype=torch.float32)
    features = [head(out(latents)).features for latents in (known[500:], known[:500], others)]
    covariance = Covariance.fit(features[0], SNGP().ridge)
    assert covariance(features[2]).quantile(0.01) > 5 * covariance(features[1]).quantile(0.99)


def test_published_settings():
    method = SNGP()
    assert (method.latent, method.width, method.mean_field) == (128, 1024, 20.0)
    assert method.length_scale == 20.0  # as effective in the released code
    assert SNGP(**SNGP.published["cifar10"]) == SNGP(mean_field=25.0)
