"""Leave-one-out densities against fits without the sample."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from daedl.density import ClassStatistics, DensityScorer, GaussianDensity
from daedl.density.leave_one_out import left_out_log_density
from daedl.density.statistics import unit_length

RANKS = {"full": None, "tied": None, "diagonal": None, "low-rank": 2, "block": None}
every_structure = pytest.mark.parametrize("covariance", RANKS)


def statistics_of(features, targets, classes, covariance, normalized=False):
    structure = "full" if covariance == "low-rank" else covariance
    width = features.shape[1]
    parts = (1, width - 1) if covariance == "block" else ()
    return ClassStatistics.of(features, targets, classes, structure, normalized, parts)


def refitted(features, targets, index, density):
    """Log density of one sample under a fit to all others, in NumPy and SciPy.

    The amount of shrinkage is that of `density`; everything else is computed from the other samples.
    """
    keep = np.arange(len(features)) != index
    rest, labels = features[keep], targets[keep]
    groups = [rest[labels == c] for c in range(len(density.counts))]
    covariances = [np.atleast_2d(np.cov(group.T)) for group in groups]
    if density.structure == "tied":
        scatter = sum((len(g) - 1) * s for g, s in zip(groups, covariances, strict=True))
        covariances = [scatter / (len(rest) - len(groups))] * len(groups)
    amounts = density.amount.expand(len(groups)).tolist()
    terms = []
    if density.structure == "diagonal":
        covariances = [np.diag(np.diag(covariance)) for covariance in covariances]
    for covariance in covariances if density.parts else ():
        covariance[:1, 1:] = covariance[1:, :1] = 0
    for group, covariance, amount in zip(groups, covariances, amounts, strict=True):
        width = len(covariance)
        target = np.trace(covariance) / width * np.eye(width)
        shrunk = (1 - amount) * covariance + amount * target
        if density.rank is not None:
            values, vectors = np.linalg.eigh(shrunk)
            values[: -density.rank] = values[: -density.rank].mean()
            shrunk = vectors * values @ vectors.T
        normal = multivariate_normal(group.mean(0), shrunk, allow_singular=True)
        terms.append(np.log(len(group) / len(rest)) + normal.logpdf(features[index]))
    return float(logsumexp(terms))


@every_structure
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
@pytest.mark.parametrize("overlap", [1.0, 0.1])
def test_equals_a_fit_without_the_sample(blobs, covariance, shrinkage, overlap):
    """Also for overlapping classes, where all terms of the mixture count."""
    features, targets = (x[::3].numpy() for x in blobs)
    features = features.astype(np.float64)
    features -= (1 - overlap) * np.stack([features[targets == c].mean(0) for c in targets])
    statistics = statistics_of(torch.tensor(features), torch.tensor(targets), 3, covariance)
    density = GaussianDensity.fit(statistics, shrinkage, RANKS[covariance])
    found = left_out_log_density(density, torch.tensor(features), torch.tensor(targets))
    for index in range(0, len(features), 7):
        expected = refitted(features, targets, index, density)
        assert float(found[index]) == pytest.approx(expected, rel=1e-9)


@every_structure
def test_equals_a_fit_without_the_sample_in_more_dimensions_than_samples(covariance):
    """Where singular covariances are shrunk; a low rank needs no shrinkage."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 30, generator=generator, dtype=torch.float64)
    features *= torch.linspace(0.2, 2, 30)
    targets = torch.arange(60) % 4
    statistics = statistics_of(features, targets, 4, covariance)
    density = GaussianDensity.fit(statistics, rank=RANKS[covariance])
    assert (density.amount > 0).all() == (covariance in ("full", "block"))
    found = left_out_log_density(density, features, targets)
    for index in range(0, 60, 7):
        expected = refitted(features.numpy(), targets.numpy(), index, density)
        assert float(found[index]) == pytest.approx(expected, rel=1e-9)


@every_structure
def test_equals_a_fit_without_the_sample_on_normalized_features(blobs, covariance):
    features, targets = (x[::5].double() for x in blobs)
    targets = targets.long()
    statistics = statistics_of(features, targets, 3, covariance, normalized=True)
    density = GaussianDensity.fit(statistics, rank=RANKS[covariance])
    found = left_out_log_density(density, features, targets)
    unit = unit_length(features, density.parts)
    for index in range(0, len(features), 11):
        expected = refitted(unit.numpy(), targets.numpy(), index, density)
        assert float(found[index]) == pytest.approx(expected, rel=1e-8)


def test_new_samples_have_the_densities_of_left_out_ones():
    """40 samples per class in 20 dimensions, where in-sample densities are far too high."""
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(8000, 20, generator=generator), torch.arange(8000) % 2
    fitted, new = features[:80], features[80:]
    density = GaussianDensity.fit(ClassStatistics.of(fitted, targets[:80], 2))
    inside, left_out = density(fitted), left_out_log_density(density, fitted, targets[:80])
    fresh = density(new)
    assert inside.median() > fresh.quantile(0.85)
    assert float(left_out.median()) == pytest.approx(float(fresh.median()), abs=2.5)


def test_new_samples_have_left_out_densities_under_a_tied_covariance_of_many_features():
    """180 samples of 4 classes in 96 dimensions; here the other classes' distances decide."""
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(4180, 96, generator=generator), torch.arange(4180) % 4
    scorer = DensityScorer.fit(features[:180], targets[:180], 4, "tied", leave_one_out=True)
    _, score = scorer(features[180:])
    assert float((score == 0).double().mean()) < 0.03


@every_structure
def test_classes_of_one_two_and_three_samples(covariance):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(46, 5, generator=generator)
    targets = torch.tensor([0] * 40 + [1] + [2] * 2 + [3] * 3)
    statistics = statistics_of(features, targets, 4, covariance)
    density = GaussianDensity.fit(statistics, rank=RANKS[covariance])
    found = left_out_log_density(density, features, targets)
    assert torch.isfinite(found).all()
    # Without its only sample a class vanishes, and the density is that of the other classes.
    others = density.class_log_densities(features[40:41])[0, [0, 2, 3]].logsumexp(-1)
    assert float(found[40]) == pytest.approx(float(others + torch.tensor(46 / 45).log()), rel=1e-6)


def test_fewer_in_distribution_samples_are_below_the_range():
    generator = torch.Generator().manual_seed(2)
    features, targets = torch.randn(2000, 30, generator=generator), torch.arange(2000) % 2
    shares = []
    for left_out in (False, True):
        scorer = DensityScorer.fit(features[:120], targets[:120], 2, leave_one_out=left_out)
        _, score = scorer(features[120:])
        shares.append(float((score == 0).double().mean()))
    assert shares[0] > 0.2
    assert shares[1] < 0.05
