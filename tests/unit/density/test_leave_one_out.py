"""Leave-one-out densities against fits without the sample."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from daedl.density import ClassStatistics, DensityScorer, GaussianDensity
from daedl.density.leave_one_out import left_out_log_density


def refitted(features, targets, index, classes, structure, shrinkage):
    """Log density of one sample under a fit to all others."""
    keep = torch.arange(len(features)) != index
    statistics = ClassStatistics.of(features[keep], targets[keep], classes, structure)
    return float(GaussianDensity.fit(statistics, shrinkage)(features[index : index + 1]))


@pytest.mark.parametrize(
    ("structure", "shrinkage", "tolerance"),
    [
        ("full", 0.0, 1e-9),
        ("diagonal", 0.0, 1e-9),
        ("tied", 0.0, 2e-3),  # the other classes' distances are held
        ("full", 0.2, 2e-2),  # the amount of shrinkage is held, its target is not exact
        ("diagonal", 0.2, 2e-2),
    ],
)
def test_equals_a_fit_without_the_sample(blobs, structure, shrinkage, tolerance):
    features, targets = (x[:200] for x in blobs)
    features = features.double()
    statistics = ClassStatistics.of(features, targets, 3, structure)
    found = left_out_log_density(GaussianDensity.fit(statistics, shrinkage), features, targets)
    for index in range(0, 200, 9):
        expected = refitted(features, targets, index, 3, structure, shrinkage)
        assert float(found[index]) == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(("structure", "shrinkage"), [("full", 0.3), ("tied", 0.0), ("tied", 0.3)])
def test_own_class_equals_a_fit_without_the_sample(blobs, structure, shrinkage):
    """In NumPy, with mean and covariance without the sample and a fixed shrinkage."""
    features, targets = (x[:60].numpy() for x in blobs)
    features = features.astype(np.float64)
    statistics = ClassStatistics.of(torch.tensor(features), torch.tensor(targets), 3, structure)
    density = GaussianDensity.fit(statistics, shrinkage)
    found = left_out_log_density(density, torch.tensor(features), torch.tensor(targets))
    every = density.class_log_densities(torch.tensor(features)).numpy() + np.log(60 / 59)
    tied = structure == "tied"
    for index in range(0, 60, 7):
        c = targets[index]
        rest = np.arange(60) != index
        parts = [features[rest & (targets == each)] for each in (range(3) if tied else [c])]
        scatter = sum((part - part.mean(0)).T @ (part - part.mean(0)) for part in parts)
        freedom = sum(map(len, parts)) - len(parts)
        amount, scale = (float(x[0 if tied else c]) for x in (density.amount, density.shrunk.scale))
        grown = (freedom + 1) / freedom
        covariance = (1 - amount) * scatter / freedom + grown * amount * scale * np.eye(4)
        own = features[rest & (targets == c)]
        terms = every[index]
        terms[c] = multivariate_normal(own.mean(0), covariance).logpdf(features[index])
        terms[c] += np.log(len(own) / 59)
        assert float(found[index]) == pytest.approx(float(logsumexp(terms)), rel=1e-9)


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


@pytest.mark.parametrize("structure", ["full", "tied", "diagonal"])
def test_classes_of_one_two_and_three_samples(structure):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(46, 5, generator=generator)
    targets = torch.tensor([0] * 40 + [1] + [2] * 2 + [3] * 3)
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 4, structure))
    found = left_out_log_density(density, features, targets)
    assert torch.isfinite(found).all()
    # Without its one sample a class is gone, and the others are all that is left.
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
