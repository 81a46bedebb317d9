"""Eigenvalues after a rank-one downdate against NumPy."""

import numpy as np
import pytest
import torch

from daedl.density.downdate import downdated


def check(values, vectors, weight, rank):
    """Compare with `eigh` of each matrix; projections onto equal eigenvalues are compared as a sum."""
    found, along = downdated(torch.tensor(values), torch.tensor(vectors), weight, rank)
    for z, mu, squares in zip(vectors, found.numpy(), along.numpy(), strict=True):
        expected, axes = np.linalg.eigh(np.diag(values) - weight * np.outer(z, z))
        largest, largest_axes = expected[::-1][:rank], axes[:, ::-1][:, :rank]
        np.testing.assert_allclose(mu, largest, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            squares.sum(), ((largest_axes.T @ z) ** 2).sum(), rtol=1e-7, atol=1e-9
        )


def sorted_values(rng, size):
    return np.sort(rng.exponential(size=size))[::-1].copy()


@pytest.mark.parametrize("weight", [0.0, 1e-4, 0.03, 0.3])
def test_equals_numpy(weight):
    rng = np.random.default_rng(0)
    values = sorted_values(rng, 12)
    check(values, rng.normal(size=(40, 12)) * np.sqrt(values), weight, 5)


def test_zero_and_nearly_zero_components():
    rng = np.random.default_rng(1)
    values = sorted_values(rng, 8)
    vectors = rng.normal(size=(20, 8)) * np.sqrt(values)
    vectors[:5, 2] = 0
    vectors[5:10, 1:4] *= 1e-9
    vectors[10] = 0
    vectors[11, 1:] = 0
    vectors[12, :3] = 0
    check(values, vectors, 0.05, 4)


def test_equal_and_zero_values():
    rng = np.random.default_rng(2)
    values = np.array([3.0, 2.0, 2.0, 1.0, 0.5, 0.0, 0.0])
    check(values, rng.normal(size=(20, 7)) * np.sqrt(values), 0.05, 5)
