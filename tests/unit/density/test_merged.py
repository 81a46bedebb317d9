"""Merging more samples into a fitted density and its normaliser."""

import pytest
import torch

from daedl.density import (
    NORMALIZERS,
    ClassStatistics,
    DensityScorer,
    GaussianDensity,
    HalfQuantile,
    MinMax,
    SmoothQuantile,
)


def halves(blobs):
    features, targets = blobs
    return (features[:400], targets[:400]), (features[400:], targets[400:])


@pytest.mark.parametrize("structure", ["full", "tied", "diagonal"])
def test_mean_log_density_equals_that_of_the_samples(blobs, structure):
    (features, targets), (other, other_targets) = halves(blobs)
    density = GaussianDensity.fit(ClassStatistics.of(other, other_targets, 3, structure))
    statistics = ClassStatistics.of(features, targets, 3, structure)
    own = density.class_log_densities(features).gather(1, targets[:, None])
    assert density.mean_log_density(statistics) == pytest.approx(float(own.mean()), rel=1e-5)


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal", "low-rank", "tied-low-rank"])
@pytest.mark.parametrize("normalizer", sorted(NORMALIZERS))
@pytest.mark.parametrize("normalize", [False, True])
def test_merged_density_is_that_of_all_samples_with_a_similar_range(
    blobs, covariance, normalizer, normalize
):
    first, second = halves(blobs)
    settings = {"normalizer": normalizer, "rank": 2, "normalize_features": normalize}
    whole = DensityScorer.fit(*blobs, 3, covariance, **settings)
    merged = DensityScorer.fit(*first, 3, covariance, **settings).merged(*second)
    # Directions within a class part have any basis, so that products in float32 are rounded otherwise.
    exact = {} if covariance != "tied-low-rank" else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(merged.density(blobs[0]), whole.density(blobs[0]), **exact)
    length = whole.normalizer.high - whole.normalizer.low
    assert merged.normalizer.low == pytest.approx(whole.normalizer.low, abs=0.15 * length)
    assert merged.normalizer.high == pytest.approx(whole.normalizer.high, abs=0.1 * length)
    score = merged(blobs[0])[1]
    assert ((score == 0) | (score == 1)).double().mean() < 0.02


def test_selected_structure_is_kept(blobs):
    first, second = halves(blobs)
    scorer = DensityScorer.fit(*first, 3, "auto")
    merged = scorer.merged(*second)
    assert merged.density.structure == scorer.density.structure
    assert merged.density.candidates == scorer.density.candidates != {}


def test_reference_follows_the_density(blobs):
    """Unchanged by merging the same samples again; lower after merging distant samples."""
    features, targets = blobs
    scorer = DensityScorer.fit(features, targets, 3)
    assert scorer.merged(features, targets).reference == pytest.approx(scorer.reference, abs=0.02)
    elsewhere = features + 40
    merged = scorer.merged(elsewhere, targets)
    scores = [merged(each)[1].mean() for each in (features, elsewhere)]
    assert merged.reference == pytest.approx(float(sum(scores) / 2), abs=0.03)


def test_merged_samples_need_not_cover_all_classes(blobs):
    features, targets = blobs
    scorer = DensityScorer.fit(features, targets, 3)
    some = targets == 1
    merged = scorer.merged(features[some] + 1, targets[some])
    assert merged.density.counts.tolist() == [400, 300, 60]
    torch.testing.assert_close(merged.density.means[0], scorer.density.means[0])


def test_merged_samples_are_in_the_range(blobs):
    """A second camera: samples with score 0 are in the range after merging."""
    features, targets = blobs
    scorer = DensityScorer.fit(features, targets, 3)
    elsewhere = features + 40
    assert (scorer(elsewhere)[1] == 0).all()
    merged = scorer.merged(elsewhere, targets)
    assert (merged(elsewhere)[1] > 0).double().mean() > 0.98
    # The range of the earlier samples is shifted with their density.
    assert (merged(features)[1] > 0).double().mean() > 0.95


def test_leave_one_out_widens_the_range(blobs):
    first, second = halves(blobs)
    kept = DensityScorer.fit(*first, 3, leave_one_out=True)
    plain, left_out = (kept.merged(*second, leave_one_out=each) for each in (False, True))
    assert left_out.normalizer.low <= plain.normalizer.low


def test_normalizers_are_shifted_merged_and_inverted():
    assert MinMax(-3, 5).shifted(1) == MinMax(-2, 6)
    assert MinMax(-3, 5).merged(torch.tensor([-1.0, 7, 2]), 0.5) == MinMax(-3, 7)
    values = torch.linspace(4, 12, 101)
    joined = SmoothQuantile(0, 4, level=1e-9).merged(values, 0.25)
    assert joined == SmoothQuantile(1, 6, level=1e-9)
    for normalizer in (MinMax(-3, 5), SmoothQuantile(-3, 5, 0.1), HalfQuantile(-3, 5, 0.1)):
        for score in (0.55, 0.7, 0.85):
            log_density = torch.tensor(normalizer.inverse(score))
            assert float(normalizer(log_density)) == pytest.approx(score)


@pytest.mark.parametrize("normalizer", sorted(NORMALIZERS))
def test_a_single_sample_can_be_merged(blobs, normalizer):
    scorer = DensityScorer.fit(*blobs, 3, normalizer=normalizer)
    merged = scorer.merged(blobs[0][:1], blobs[1][:1])
    assert merged.density.counts.sum() == 611


def test_reference_is_restored_and_merged(blobs):
    first, second = halves(blobs)
    scorer = DensityScorer.fit(*first, 3)
    again = DensityScorer.restore(scorer.state_dict(), scorer.settings())
    assert again.reference == scorer.reference
    moved = second[0] + torch.tensor([3.0, 0, 0, 0])
    merged = scorer.merged(moved, second[1])
    every = torch.cat([first[0], moved])
    assert merged.reference == pytest.approx(float(merged(every)[1].mean()), abs=0.04)
    scorer.reference = None
    assert scorer.merged(*second).reference is None


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_reference_is_the_mean_score_of_new_samples(leave_one_out):
    """With many features and few samples, where in-sample scores are far higher."""
    features = torch.randn(20_240, 20, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20_240) % 3
    scorer = DensityScorer.fit(features[:240], targets[:240], 3, leave_one_out=leave_one_out)
    new = float(scorer(features[240:])[1].mean())
    assert scorer.reference == pytest.approx(new, abs=0.04)
    assert leave_one_out or float(scorer(features[:240])[1].mean()) > new + 0.1
