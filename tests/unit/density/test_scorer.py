"""Density scorer: range, dtype, restoring, memory."""

import os
import subprocess
import sys

import pytest
import torch

from daedl.density import NORMALIZERS, DensityScorer
from daedl.density import scorer as scorer_module
from daedl.density.fitting import FLOAT32_AGREEMENT
from daedl.density.leave_one_out import left_out_log_density
from daedl.density.scorer import MANY, RANGE, range_step


def test_samples_of_the_range():
    """Fewer with many classes; up to 1,000 their number does not matter."""
    for classes in (2, MANY):
        assert range_step(RANGE, classes) == 1
        assert range_step(10 * RANGE, classes) == 10
    assert range_step(RANGE, 2 * MANY) == 4
    assert range_step(30_000, 10 * MANY) == 14


def test_range_of_many_classes_of_few_samples(monkeypatch):
    """The range of some left-out samples is that of all, up to chance."""
    monkeypatch.setattr(scorer_module, "MANY", 50)
    monkeypatch.setattr(scorer_module, "RANGE", 1000)
    monkeypatch.setattr(scorer_module, "_SAMPLE", 100)
    classes, generator = 200, torch.Generator().manual_seed(0)
    targets = torch.arange(3 * classes) % classes
    features = 2 * torch.randn(classes, 4, generator=generator)[targets]
    features += torch.randn(features.shape, generator=generator)
    assert range_step(len(targets), classes) == 6
    scorer = DensityScorer.fit(
        features, targets, classes, "tied", "auto", "half-quantile", leave_one_out=True
    )
    left_out = left_out_log_density(scorer.density, features, targets)
    assert scorer.normalizer(left_out).mean() == pytest.approx(scorer.reference, abs=0.05)


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal", "low-rank", "auto"])
@pytest.mark.parametrize("normalizer", sorted(NORMALIZERS))
@pytest.mark.parametrize("normalize", [False, True])
def test_restored_scorer_is_the_same(blobs, covariance, normalizer, normalize):
    features, targets = blobs
    scorer = DensityScorer.fit(
        features,
        targets,
        3,
        covariance,
        normalizer=normalizer,
        rank=2,
        normalize_features=normalize,
    )
    again = DensityScorer.restore(scorer.state_dict(), scorer.settings())
    probe = features + torch.randn(features.shape, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(scorer(probe), again(probe), strict=True):
        assert torch.equal(ours, theirs)
    assert again.normalizer == scorer.normalizer
    assert again.density.settings() == scorer.density.settings()


@pytest.mark.parametrize("covariance", ["full", "tied", "low-rank"])
def test_whole_matrices_of_earlier_versions_are_restored(blobs, covariance):
    """Files contain one triangle of each symmetric matrix."""
    features, targets = blobs
    scorer = DensityScorer.fit(features, targets, 3, covariance, rank=2)
    state, width = scorer.state_dict(), features.shape[1]
    assert state["density.scatter"].shape[-1] == width * (width + 1) // 2
    whole = {**state, "density.scatter": scorer.density.statistics.scatter}
    again = DensityScorer.restore(whole, scorer.settings())
    assert torch.equal(again(features)[0], scorer(features)[0])


def test_triangles_of_another_width_are_rejected(blobs):
    scorer = DensityScorer.fit(*blobs, 3)
    state = {**scorer.state_dict(), "density.scatter": torch.ones(3, 7).double()}
    with pytest.raises(ValueError, match="triangles"):
        DensityScorer.restore(state, scorer.settings())


def test_settings_of_earlier_versions_are_restored(blobs):
    scorer = DensityScorer.fit(*blobs, 3)
    settings = scorer.settings()
    for name in ("rank", "normalized", "candidates"):
        del settings[name]
    again = DensityScorer.restore(scorer.state_dict(), settings)
    assert torch.equal(again(blobs[0])[1], scorer(blobs[0])[1])


def test_training_scores_range_from_zero_to_one(blobs):
    features, targets = blobs
    log_density, score = DensityScorer.fit(features, targets, 3)(features)
    assert score[log_density.argmin()] == 0
    assert score[log_density.argmax()] == 1


def test_float32_is_used_only_if_it_agrees_with_float64(blobs):
    features, targets = blobs
    good = DensityScorer.fit(features, targets, 3)
    assert good.density.dtype == torch.float32
    assert DensityScorer.fit(features.double(), targets, 3).density.dtype == torch.float64
    exact = good.density.cast(torch.float64)(features)
    error = (good.density(features) - exact).abs().max() / exact.abs().median()
    assert error <= FLOAT32_AGREEMENT
    # Two nearly equal columns: the variance of their difference is lost in float32.
    twin = torch.cat([features, features[:, :1] * (1 + 1e-4 * torch.randn(610, 1))], dim=1)
    ill = DensityScorer.fit(twin * 1000, targets, 3, shrinkage=0.0)
    assert ill.density.condition.max() > 1e8
    assert ill.density.dtype == torch.float64


def test_unknown_normalizer_is_rejected_with_a_suggestion(blobs):
    with pytest.raises(ValueError, match="did you mean 'minmax'"):
        DensityScorer.fit(*blobs, 3, normalizer="min-max")


PEAK = """
import torch
from pathlib import Path
from daedl.density import NORMALIZERS, DensityScorer

def memory(field):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{field}:")[1].split()[0])

torch.set_num_threads(1)
features = torch.randn(200_000, 64)
targets = torch.arange(200_000) % 4
DensityScorer.fit(features[:9000], targets[:9000], 4)  # allocations that libraries keep
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
DensityScorer.fit(features, targets, 4)
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_working_memory_does_not_grow_with_the_number_of_samples():
    """In a process of its own, which returns freed memory at once, so that only what is in use counts."""
    returning = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", PEAK],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **returning},
    )
    # A float64 copy of the features would take 102 MB, whitened features 4 times as much.
    assert int(done.stdout) < 60e6
