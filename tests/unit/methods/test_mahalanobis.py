"""Mahalanobis distances, also relative and of normalised features, against SciPy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from daedl.density import ClassStatistics, GaussianDensity
from daedl.methods import Mahalanobis, MahalanobisPlus, RelativeMahalanobis, Softmax
from daedl.outputs import Outputs


def with_logits(features):
    generator = torch.Generator().manual_seed(1)
    return Outputs(features, torch.randn(len(features), 3, generator=generator).to(features))


def scores(features, targets, queries=None, kind=Mahalanobis, **settings):
    method = kind(**settings)
    fitted = method.fit(with_logits(features), targets)
    return method.predict(with_logits(features if queries is None else queries), fitted).epistemic


def test_worked_numbers():
    """Classes at (0, 0) and (3, 0), shared covariance diag(2, 0.5); f = (1, 1): 1/2 + 2 and 2 + 2."""
    statistics = ClassStatistics(
        counts=torch.tensor([6.0, 4.0]).double(),
        means=torch.tensor([[0.0, 0.0], [3.0, 0.0]]).double(),
        scatter=8 * torch.tensor([[2.0, 0.0], [0.0, 0.5]]).double(),  # 8 = 10 samples - 2 classes
        structure="tied",
    )
    gaussians = GaussianDensity.fit(statistics)
    point = torch.tensor([[1.0, 1.0]]).double()
    assert gaussians.squared_distances(point)[0].tolist() == pytest.approx([2.5, 4.0])
    logits = torch.tensor([[0.0, 5.0]]).double()
    p = Mahalanobis().predict(Outputs(point, logits), gaussians)
    assert p.epistemic.item() == pytest.approx(2.5)  # of the nearest class, not the predicted one
    assert p.labels.item() == 1


def test_against_scipy(blobs):
    features, targets = blobs[0].double(), blobs[1]
    groups = [features[targets == c].numpy() for c in range(3)]
    pooled = sum((len(g) - 1) * np.cov(g, rowvar=False) for g in groups) / (len(features) - 3)
    inverse, queries = np.linalg.inv(pooled), 3 * torch.randn(40, 4).double()
    expected = [
        min(mahalanobis(q, g.mean(0), inverse) ** 2 for g in groups) for q in queries.numpy()
    ]
    computed = scores(features, targets, queries)
    torch.testing.assert_close(computed, torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_ranking_equals_that_with_the_papers_covariance(blobs):
    """Dividing by N scales all distances by N / (N − C)."""
    features, targets = blobs[0].double(), blobs[1]
    expected = published(features, targets) * (610 - 3) / 610
    torch.testing.assert_close(scores(features, targets), expected, rtol=1e-4, atol=1e-4)


def published(features, targets):
    """Distances to the nearest class, with a covariance divided by N."""
    lda = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(features, targets)
    away = features.numpy()[:, None] - lda.means_[None]
    distances = np.einsum("ncd,de,nce->nc", away, np.linalg.inv(lda.covariance_), away)
    return torch.tensor(distances.min(1))


def test_relative_distances_against_scikit_learn(blobs):
    features, targets = blobs[0].double(), blobs[1]
    background = EmpiricalCovariance().fit(features.numpy()).mahalanobis(features.numpy())
    computed = scores(features, targets, kind=RelativeMahalanobis)
    expected = published(features, targets) - torch.tensor(background)
    torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-4)


def test_relative_distances_ignore_features_that_all_classes_share(blobs):
    features, targets = blobs[0].double(), blobs[1]
    noise = torch.randn(610, 1, generator=torch.Generator().manual_seed(2)).double()
    for c in range(3):
        noise[targets == c] -= noise[targets == c].mean()  # equal class means: Σ and Σ₀ agree on it
    wider = torch.cat([features, noise], 1)
    moved = torch.cat([features, noise + 50], 1)
    near, far = (scores(wider, targets, each, RelativeMahalanobis) for each in (wider, moved))
    correlated = (far - near).abs().mean()  # the noise correlates with the other features by chance
    assert correlated < 0.02 * (scores(wider, targets, moved) - scores(wider, targets)).mean()


def test_scores_are_invariant_to_affine_maps_of_the_features(blobs):
    features, targets = blobs[0].double(), blobs[1]
    mixing = torch.tensor([[2.0, 1, 0, 0], [0, 30, 5, 0], [0, 0, 0.1, 0], [1, 0, 0, 1]]).double()
    mixed = features @ mixing + 7
    torch.testing.assert_close(
        scores(mixed, targets), scores(features, targets), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_score_is_zero_at_a_mean_and_increases_with_distance(blobs, dtype):
    features, targets = blobs[0].to(dtype), blobs[1]
    mean = features[targets == 1].double().mean(0).to(dtype)
    direction = torch.tensor([1.0, -1, 1, -1], dtype=dtype)
    queries = torch.stack([mean + step * direction for step in (0, 50, 1e3, 1e6, 1e20)])
    computed = scores(features, targets, queries)
    assert computed.dtype == dtype
    assert 0 <= computed[0].item() < 1e-3
    assert (computed.diff() > 0).all()
    assert torch.isfinite(computed).all()


def test_singular_covariance(blobs):
    """A constant feature, and a copy of another one."""
    features, targets = blobs
    singular = torch.cat([features, torch.zeros(610, 1), features[:, :1]], 1)
    computed = scores(singular, targets)
    assert torch.isfinite(computed).all()
    unusual = singular[:1].clone()
    unusual[0, 4] = 10.0  # zero in all training samples
    assert scores(singular, targets, unusual).item() > computed.quantile(0.99)


def test_probabilities_equal_softmax(blobs):
    outputs = with_logits(blobs[0])
    method = Mahalanobis()
    p = method.predict(outputs, method.fit(outputs, blobs[1]))
    assert torch.equal(p.probs, Softmax().predict(outputs, None).probs)
    assert p.log_density is None


def test_normalized_features_are_those_divided_by_their_norms(blobs):
    """Mahalanobis++: the score is invariant to the length of a feature vector."""
    features, targets = blobs[0].double(), blobs[1]
    unit = features / features.norm(dim=1, keepdim=True)
    computed = scores(features, targets, 7 * features, normalize_features=True)
    torch.testing.assert_close(computed, scores(unit, targets))
    assert torch.equal(computed, scores(features, targets, 7 * features, MahalanobisPlus))


def test_invalid_settings_and_features_are_rejected(blobs):
    with pytest.raises(ValueError, match="shrinkage is 2"):
        Mahalanobis(shrinkage=2)
    features, targets = blobs
    with pytest.raises(ValueError, match="4 columns"):
        scores(features, targets, features[:5, :3])
