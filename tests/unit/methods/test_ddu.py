"""DDU: densities against worked numbers and SciPy."""

import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from daedl.density import ClassStatistics, GaussianDensity
from daedl.methods import DAEDL, Softmax
from daedl.methods.ddu import DDU
from daedl.outputs import Outputs


def with_logits(features):
    generator = torch.Generator().manual_seed(1)
    return Outputs(features, torch.randn(len(features), 3, generator=generator).to(features))


def predicted(features, targets, queries=None, method=None):
    method = method or DDU()
    fitted = method.fit(with_logits(features), targets)
    return method.predict(with_logits(features if queries is None else queries), fitted)


def test_worked_numbers():
    """Class 0 N(0, I), class 1 mean (3, 0), covariance diag(2, 0.5), weights 0.6 and 0.4; f = (1, 1)."""
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


def test_density_equals_daedl_and_probabilities_equal_softmax(blobs):
    outputs = with_logits(blobs[0])
    p = predicted(*blobs)
    daedl_ = DAEDL()
    theirs = daedl_.predict(outputs, daedl_.fit(outputs, blobs[1]))
    torch.testing.assert_close(p.log_density.double(), theirs.log_density, rtol=1e-5, atol=1e-5)
    softmax = Softmax().predict(outputs, None)
    assert torch.equal(p.probs, softmax.probs)
    assert torch.equal(p.aleatoric, softmax.aleatoric)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_score_increases_with_distance(blobs, dtype):
    features, targets = blobs[0].to(dtype), blobs[1]
    direction = torch.tensor([1.0, -1, 1, -1], dtype=dtype)
    far = torch.stack([step * direction for step in (30, 1e3, 1e6, 1e20)])
    p = predicted(features, targets, far)
    assert p.epistemic.dtype == p.log_density.dtype == dtype
    assert torch.isfinite(p.epistemic).all()
    assert (p.epistemic.diff() > 0).all()
    assert p.epistemic[0] > predicted(features, targets).epistemic.max()


def test_normalized_features_are_those_divided_by_their_norms(blobs):
    features, targets = blobs[0].double(), blobs[1]
    unit = features / features.norm(dim=1, keepdim=True)
    p = predicted(features, targets, 7 * features, DDU(normalize_features=True))
    torch.testing.assert_close(p.epistemic, predicted(unit, targets).epistemic)


def test_fewer_samples_than_features_are_scored_by_shrinkage():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 50, generator=generator)
    p = predicted(features, torch.arange(30) % 3, 10 * features)
    assert torch.isfinite(p.epistemic).all()
