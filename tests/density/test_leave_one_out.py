"""Leaving one sample out, against fitting again without it."""

import pytest
import torch

from daedl.density import ClassStatistics, DensityScorer, GaussianDensity
from daedl.density.leave_one_out import left_out_log_density


def refitted(features, targets, index, classes, structure, shrinkage):
    """Log density of one sample under the fit to all others."""
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
def test_equals_fitting_again_without_the_sample(blobs, structure, shrinkage, tolerance):
    features, targets = (x[:200] for x in blobs)
    features = features.double()
    statistics = ClassStatistics.of(features, targets, 3, structure)
    found = left_out_log_density(GaussianDensity.fit(statistics, shrinkage), features, targets)
    for index in range(0, 200, 9):
        expected = refitted(features, targets, index, 3, structure, shrinkage)
        assert float(found[index]) == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_new_samples_are_as_dense_as_left_out_ones():
    """40 samples a class in 20 dimensions: in-sample densities are far too high."""
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


def test_fewer_known_samples_fall_below_the_range():
    generator = torch.Generator().manual_seed(2)
    features, targets = torch.randn(2000, 30, generator=generator), torch.arange(2000) % 2
    shares = []
    for left_out in (False, True):
        scorer = DensityScorer.fit(features[:120], targets[:120], 2, leave_one_out=left_out)
        _, score = scorer(features[120:])
        shares.append(float((score == 0).double().mean()))
    assert shares[0] > 0.2
    assert shares[1] < 0.05
