"""ViM against the published formula, computed with NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.decomposition import TruncatedSVD

from daedl.methods import ViM
from daedl.outputs import Outputs


def outputs(number, seed, spread=None, width=12):
    """Features with decreasing variances, and the logits, weights and bias of a linear layer."""
    weights = np.random.default_rng(0)
    weight, bias = weights.normal(size=(5, width)), weights.normal(size=5)
    spread = np.linspace(3, 0.2, width) if spread is None else spread
    features = np.random.default_rng(seed).normal(size=(number, width)) * spread + 1
    return features, features @ weight.T + bias, weight, bias


def published(known, query, dimension):
    """The last entries of softmax([z, α r])."""
    features, logits, weight, bias = known
    origin = -np.linalg.pinv(weight) @ bias
    principal = TruncatedSVD(dimension, algorithm="arpack").fit(features - origin).components_

    def residual(points):
        away = points - origin
        return np.linalg.norm(away - away @ principal.T @ principal, axis=1)

    alpha = logits.max(1).sum() / residual(features).sum()
    virtual = alpha * residual(query[0])
    return softmax(np.concatenate([query[1], virtual[:, None]], 1), axis=1)[:, -1]


def scores(known, query, **settings):
    fitted_to, predicted = (Outputs(*map(torch.tensor, each[:2])) for each in (known, query))
    method = ViM(**settings)
    fitted = method.fit(fitted_to, torch.zeros(len(fitted_to.logits), dtype=torch.long))
    return method.predict(predicted, fitted).epistemic


@pytest.mark.parametrize("dimension", [None, 3])
def test_score_is_the_log_odds_of_the_published_one(dimension):
    known, query = outputs(400, 1), outputs(50, 2)
    computed = scores(known, query, dimension=dimension).sigmoid()
    expected = torch.tensor(published(known, query, dimension or 6))
    torch.testing.assert_close(computed, expected, rtol=1e-5, atol=1e-8)


def test_residual_increases_the_score():
    """The logits of a point moved along a residual direction are kept."""
    known, query = outputs(400, 1), outputs(1, 2)
    directions = np.linalg.svd(known[2])[2][5:]  # the null space of the last layer
    moved = query[0] + 10 * directions[:1], query[1]
    assert scores(known, moved) > scores(known, query) + 1


@pytest.mark.parametrize("factor", [0.0, 1e-9])
def test_features_without_residual_have_finite_scores(factor):
    """Half of the features are constant, or vary by less than rounding."""
    spread = np.r_[np.ones(6), np.full(6, factor)]
    known, unusual = outputs(400, 1, spread), outputs(400, 1)
    # Around the origin, the constant features add one dimension to the six that vary.
    inside, outside = (scores(known, each, dimension=7) for each in (known, unusual))
    assert torch.isfinite(inside).all()
    assert inside.max() < outside.min()


def test_only_features_of_the_last_block_are_used():
    known, earlier = outputs(100, 1), torch.randn(100, 3, dtype=torch.float64)
    features, logits = map(torch.tensor, known[:2])
    joined, targets = Outputs.of_parts([earlier, features], logits), torch.zeros(100).long()
    p = ViM().predict(joined, ViM().fit(joined, targets))
    torch.testing.assert_close(p.epistemic, scores(known, known))


def test_published_dimensions_and_invalid_ones():
    assert [ViM()._dimension(width) for width in (64, 768, 2048)] == [32, 512, 1000]
    with pytest.raises(ValueError, match="dimension is 12"):
        scores(outputs(50, 1), outputs(5, 2), dimension=12)
