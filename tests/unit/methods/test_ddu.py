"""Densities of DDU, against worked numbers and SciPy."""

from functools import partial

import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import daedl
from daedl import SpectralNorm
from daedl.density import ClassStatistics, GaussianDensity
from daedl.methods import DAEDL, Softmax
from daedl.methods.ddu import DDU
from daedl.networks import MLP
from daedl.outputs import Outputs

fit = partial(daedl.fit, accelerator="cpu", progress=False)


def with_logits(features):
    generator = torch.Generator().manual_seed(1)
    return Outputs(features, torch.randn(len(features), 3, generator=generator).to(features))


def predicted(features, targets, queries=None, method=None):
    method = method or DDU()
    fitted = method.fit(with_logits(features), targets)
    return method.predict(with_logits(features if queries is None else queries), fitted)


def test_worked_numbers():
    """Class 0 N(0, I), class 1 mean (3, 0), covariance diag(2, 0.5), shares 0.6 and 0.4; f = (1, 1)."""
    covariances = torch.stack([torch.eye(2), torch.diag(torch.tensor([2.0, 0.5]))]).double()
    counts = torch.tensor([6.0, 4.0]).double()
    means = torch.tensor([[0.0, 0.0], [3.0, 0.0]]).double()
    scatter = covariances * (counts - 1)[:, None, None]
    density = GaussianDensity.fit(ClassStatistics(counts, means, scatter, "full"))
    out = Outputs(torch.ones(1, 2).double(), torch.tensor([[2.0, 0.0]]).double())
    p = DDU().predict(out, density)
    assert p.log_density.item() == pytest.approx(-3.12936, abs=5e-6)
    assert p.epistemic.item() == pytest.approx(3.12936, abs=5e-6)
    assert p.density_score is None


def test_against_scipy(blobs):
    features, targets = blobs[0].double(), blobs[1]
    queries = features[:50] + torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    parts = []
    for c in range(3):
        own = features[targets == c]
        gaussian = multivariate_normal(own.mean(0).numpy(), own.T.cov().numpy())
        parts.append(gaussian.logpdf(queries.numpy()) + torch.tensor(len(own) / 610).log().item())
    expected = torch.tensor(logsumexp(parts, axis=0))
    p = predicted(features, targets, queries)
    torch.testing.assert_close(p.log_density, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(p.epistemic, -p.log_density)


def test_the_density_is_that_of_daedl_and_the_probabilities_are_softmax_ones(blobs):
    outputs = with_logits(blobs[0])
    p = predicted(*blobs)
    daedl_ = DAEDL()
    theirs = daedl_.predict(outputs, daedl_.fit(outputs, blobs[1]))
    torch.testing.assert_close(p.log_density.double(), theirs.log_density, rtol=1e-5, atol=1e-5)
    softmax = Softmax().predict(outputs, None)
    assert torch.equal(p.probs, softmax.probs)
    assert torch.equal(p.aleatoric, softmax.aleatoric)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rarer_far_away(blobs, dtype):
    features, targets = blobs[0].to(dtype), blobs[1]
    direction = torch.tensor([1.0, -1, 1, -1], dtype=dtype)
    far = torch.stack([step * direction for step in (30, 1e3, 1e6, 1e20)])
    p = predicted(features, targets, far)
    assert p.epistemic.dtype == p.log_density.dtype == dtype
    assert torch.isfinite(p.epistemic).all()
    assert (p.epistemic.diff() > 0).all()
    assert p.epistemic[0] > predicted(features, targets).epistemic.max()


def test_fewer_samples_than_features():
    """Covariances are singular then, and are shrunk."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 50, generator=generator)
    p = predicted(features, torch.arange(30) % 3, 10 * features)
    assert torch.isfinite(p.epistemic).all()


def test_published_normalisation_can_be_asked_for():
    spectral = SpectralNorm(norm="operator", coefficient=3, soft=True)
    method = DDU(spectral=spectral)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), method)
    assert daedl.spectral.normalization(classifier.network) == spectral
    assert method.training_method() == Softmax(spectral=spectral)
    assert DDU().spectral is None


def test_training_restoring_and_saving(blobs, tmp_path):
    torch.manual_seed(0)
    method = DDU()
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), method)
    # The advice on DAEDL's normaliser would be out of place.
    assert fit(classifier, blobs, blobs, max_epochs=1).density_effect is None
    ours = classifier.predict(blobs[0])
    assert set(ours.scores()) == {"aleatoric", "epistemic", "density"}
    outputs, _ = classifier.collect([blobs])
    again = method.restore(classifier.fitted.state_dict(), classifier.fitted.settings())
    torch.testing.assert_close(method.predict(outputs, again).epistemic, ours.epistemic)
    classifier.save(tmp_path / "model.daedl")
    loaded = daedl.Classifier.load(tmp_path / "model.daedl", method=method)
    assert torch.equal(loaded.predict(blobs[0]).epistemic, ours.epistemic)


def test_errors(blobs):
    with pytest.raises(ValueError, match="shrinkage is 'Auto'; expected 'auto' or a number"):
        DDU(shrinkage="Auto")
    with pytest.raises(ValueError, match="no training sample of class 2"):
        predicted(blobs[0], blobs[1].clamp_max(1))
