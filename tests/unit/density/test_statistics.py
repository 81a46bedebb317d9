"""Streaming statistics and merging against NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daedl.density import ClassStatistics, statistics


def dense(features, targets, c):
    return np.cov(features[targets == c].double().numpy().T)


def test_counts_means_and_scatter_equal_numpy(blobs, monkeypatch):
    monkeypatch.setattr(statistics, "_ROWS", 37)  # several blocks, the last one short
    features, targets = blobs
    found = ClassStatistics.of(features, targets, 3)
    assert found.counts.tolist() == [400, 150, 60]
    assert found.means.dtype == found.scatter.dtype == torch.float64
    for c, covariance in enumerate(found.covariances()):
        np.testing.assert_allclose(covariance, dense(features, targets, c), rtol=1e-10)
        mean = features[targets == c].double().mean(0)
        torch.testing.assert_close(found.means[c], mean, rtol=1e-12, atol=1e-12)


def test_diagonal_and_tied_follow_from_full(blobs):
    full = ClassStatistics.of(*blobs, 3)
    diagonal = ClassStatistics.of(*blobs, 3, "diagonal")
    tied = ClassStatistics.of(*blobs, 3, "tied")
    torch.testing.assert_close(diagonal.scatter, full.scatter.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(tied.scatter, full.scatter.sum(0))
    for each in (full, diagonal, tied):
        reduced = full.reduced(each.structure)
        assert reduced.structure == each.structure
        torch.testing.assert_close(reduced.scatter, each.scatter)
    with pytest.raises(ValueError, match="from tied"):
        tied.reduced("full")
    (covariance,) = tied.covariances()
    torch.testing.assert_close(covariance, full.scatter.sum(0) / (610 - 3))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 610), st.sampled_from(["full", "tied", "diagonal"]), st.floats(-1e4, 1e4))
def test_merged_parts_equal_the_whole(cut, structure, offset):
    """Also if a part is empty, a class is in one part only, or the mean is far from zero."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(610, 4, generator=generator, dtype=torch.float64) + offset
    targets = torch.arange(610) // 204
    first = ClassStatistics.of(features[:cut], targets[:cut], 3, structure)
    second = ClassStatistics.of(features[cut:], targets[cut:], 3, structure)
    whole = ClassStatistics.of(features, targets, 3, structure)
    for merged in (first.merge(second), second.merge(first)):
        assert merged.counts.tolist() == whole.counts.tolist()
        torch.testing.assert_close(merged.means, whole.means, rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(merged.scatter, whole.scatter, rtol=1e-9, atol=1e-8)


def test_invalid_input_is_rejected(blobs):
    features, targets = blobs
    with pytest.raises(ValueError, match="unknown covariance 'round'"):
        ClassStatistics.of(features, targets, 3, "round")
    with pytest.raises(ValueError, match=r"features have shape \(610, 2, 2\)"):
        ClassStatistics.of(features.view(610, 2, 2), targets, 3)
    with pytest.raises(ValueError, match="labels"):
        ClassStatistics.of(features, targets, 2)
    broken = features.clone()
    broken[5, 1] = torch.nan
    with pytest.raises(ValueError, match=r"NaN.*\(5, 1\)"):
        ClassStatistics.of(broken, targets, 3)
    with pytest.raises(ValueError, match="merge"):
        ClassStatistics.of(*blobs, 3).merge(ClassStatistics.of(*blobs, 3, "tied"))
    with pytest.raises(ValueError, match="unnormalised"):
        ClassStatistics.of(*blobs, 3).merge(ClassStatistics.of(*blobs, 3, normalized=True))
