"""Decompositions of covariances of few samples, against NumPy and SciPy."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from daedl.density import ClassStatistics, GaussianDensity
from daedl.density.eigen import decompose

WIDTH, PARTS = 40, (8, 32)


def samples(number, scale=1.0):
    generator = torch.Generator().manual_seed(number)
    spread = torch.logspace(0, -4, WIDTH, dtype=torch.float64)
    return scale * spread * torch.randn(number, WIDTH, generator=generator, dtype=torch.float64)


def covariance_of(features, parts):
    covariance = torch.from_numpy(np.cov(features.numpy().T))
    owner = torch.repeat_interleave(torch.tensor(parts or (WIDTH,)))
    return covariance * (owner[:, None] == owner)


@pytest.mark.parametrize("parts", [(), PARTS])
@pytest.mark.parametrize("number", [2, 12, 30, 400])
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e100])
def test_equals_the_eigenvalues_and_covariance(number, parts, scale):
    covariance = covariance_of(samples(number, scale), parts)
    found = decompose(covariance, number, parts)
    expected = np.linalg.eigvalsh(covariance.numpy())
    assert found.spectrum().numpy() == pytest.approx(expected, abs=1e-12 * expected.max())
    rebuilt = found.vectors * found.values @ found.vectors.T
    torch.testing.assert_close(rebuilt, covariance, rtol=0, atol=1e-12 * float(expected.max()))
    assert sum(found.widths) == len(found.values)


def test_few_samples_have_few_directions():
    assert decompose(covariance_of(samples(12), ()), 12).vectors.shape == (WIDTH, 11)
    assert decompose(covariance_of(samples(400), ()), 400).vectors.shape == (WIDTH, WIDTH)


def test_one_repeated_sample_has_no_direction():
    found = decompose(torch.zeros(WIDTH, WIDTH, dtype=torch.float64), 5)
    assert not found.values.any()
    assert not found.vectors.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("structure", "parts"), [("full", ()), ("block", PARTS)])
def test_density_of_classes_with_fewer_samples_than_features(structure, parts, dtype):
    """Scoring with the directions of the samples equals that with the whole covariance matrix."""
    features = torch.cat([samples(12), samples(9) + 0.3])
    targets = torch.tensor([0] * 12 + [1] * 9)
    statistics = ClassStatistics.of(features, targets, 2, structure, parts=parts)
    density = GaussianDensity.fit(statistics).cast(dtype)
    new = samples(20)
    for c, amount in enumerate(density.amount.tolist()):
        covariance = covariance_of(features[targets == c], parts).numpy()
        shrunk = (1 - amount) * covariance
        shrunk += amount * np.trace(covariance) / WIDTH * np.eye(WIDTH)
        normal = multivariate_normal(features[targets == c].mean(0).numpy(), shrunk)
        expected = normal.logpdf(new.numpy()) + np.log((12, 9)[c] / 21)
        rel = 1e-9 if dtype == torch.float64 else 1e-4
        assert density.class_log_densities(new)[:, c].numpy() == pytest.approx(expected, rel=rel)
