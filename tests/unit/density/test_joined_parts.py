"""Densities of features that are joined from several parts."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from daedl.density import ClassStatistics, DensityScorer, GaussianDensity, fit_gaussians

PARTS = (1, 3)


def test_block_covariance_is_a_product_of_the_parts_densities(blobs):
    """The class-conditional log densities of the parts are added, before the sum over classes."""
    features, targets = blobs[0].double(), blobs[1]
    density = fit_gaussians(features, targets, 3, "block", shrinkage=0.0, parts=PARTS)
    rows, labels = features.numpy(), targets.numpy()
    terms = []
    for c in range(3):
        own = rows[labels == c]
        terms.append(np.full(len(rows), np.log(len(own) / len(rows))))
        for columns in (slice(0, 1), slice(1, 4)):
            part = own[:, columns]
            normal = multivariate_normal(part.mean(0), np.cov(part.T))
            terms[-1] += normal.logpdf(rows[:, columns])
    expected = logsumexp(np.stack(terms), axis=0)
    np.testing.assert_allclose(density(features).numpy(), expected, rtol=1e-9)


def test_each_part_is_normalised_by_its_own_norm(blobs):
    features, targets = blobs[0].double(), blobs[1]
    density = fit_gaussians(features, targets, 3, normalize_features=True, parts=PARTS)
    unit = torch.cat(
        [part / part.norm(dim=1, keepdim=True) for part in features.split(PARTS, 1)], 1
    )
    by_hand = fit_gaussians(unit, targets, 3)
    torch.testing.assert_close(density(features), by_hand(unit))
    scaled = features * torch.tensor([5.0, 0.2, 0.2, 0.2])
    torch.testing.assert_close(density(scaled), density(features))


def test_few_samples_need_less_shrinkage_than_one_matrix():
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(90, 30, generator=generator), torch.arange(90) % 3
    amounts = [
        fit_gaussians(features, targets, 3, covariance, parts=(15, 15)).amount
        for covariance in ("full", "block")
    ]
    assert (amounts[0] > 0).all()
    assert (amounts[1] == 0).all()


@pytest.mark.parametrize("independent", [True, False])
def test_block_is_selected_for_independent_parts(independent):
    """Strong correlations within the parts, and between them if they are not independent."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(2, 12, 12, generator=generator)
    first, second = torch.randn(2, 400, 12, generator=generator)
    second = second if independent else first + 0.1 * second
    targets = torch.arange(400) % 4
    shift = 3 * torch.randn(4, 24, generator=generator)
    # Of a different size per class, so that one covariance does not suit all.
    features = (
        torch.cat([first @ mix[0], second @ mix[1]], 1) * (1 + targets[:, None]) + shift[targets]
    )
    density = fit_gaussians(features, targets, 4, "auto", parts=(12, 12))
    assert (density.structure == "block") == independent
    assert "block" in density.candidates
    assert "block" not in fit_gaussians(features, targets, 4, "auto").candidates


def test_merged_statistics_equal_those_of_all_samples(blobs):
    features, targets = blobs
    first = ClassStatistics.of(features[:300], targets[:300], 3, "block", True, PARTS)
    merged = first.with_samples(features[300:], targets[300:])
    every = ClassStatistics.of(features, targets, 3, "block", True, PARTS)
    torch.testing.assert_close(merged.scatter, every.scatter)
    torch.testing.assert_close(
        GaussianDensity.fit(merged)(features), GaussianDensity.fit(every)(features)
    )
    with pytest.raises(ValueError, match="parts"):
        first.merge(ClassStatistics.of(features, targets, 3, "block", True, (2, 2)))


def test_restored_scorer_is_the_same(blobs):
    scorer = DensityScorer.fit(*blobs, 3, "block", normalize_features=True, parts=PARTS)
    again = DensityScorer.restore(scorer.state_dict(), scorer.settings())
    for ours, theirs in zip(scorer(blobs[0]), again(blobs[0]), strict=True):
        assert torch.equal(ours, theirs)


def test_parts_of_other_features_are_rejected(blobs):
    with pytest.raises(ValueError, match="columns in total"):
        fit_gaussians(*blobs, 3, parts=(2, 3))
