"""Densities of features that arrive in chunks."""

import pytest
import torch

import daedl
from daedl.density import DensityScorer, DensityStream, class_directions, fit_gaussians

CLASSES, WIDTH = 5, 10
COVARIANCES = ("full", "tied", "diagonal", "low-rank", "tied-low-rank", "auto")


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(CLASSES, (600,), generator=generator)
    means = torch.randn(CLASSES, WIDTH, generator=generator)
    return torch.randn(600, WIDTH, generator=generator) + means[targets], targets


def streamed(features, targets, covariance, size=50, **options):
    stream = DensityStream(CLASSES, covariance, rank=2, **options)
    for chunk in zip(features.split(size), targets.split(size), strict=True):
        stream.add(*chunk)
    return stream


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_equals_a_fit_to_all_features(data, covariance):
    """Density and range, as all samples are kept."""
    features, targets = data
    scorer = streamed(features, targets, covariance, size=200).scorer()
    whole = DensityScorer.fit(
        features, targets, CLASSES, covariance, "auto", "half-quantile", leave_one_out=True, rank=2
    )
    # The first chunk contains the whole pilot.
    exact = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(scorer.density(features), whole.density(features), **exact)
    assert scorer.normalizer.low == pytest.approx(whole.normalizer.low, rel=1e-9)
    assert scorer.reference == pytest.approx(whole.reference, rel=1e-9)
    assert scorer.density.structure == whole.density.structure


@pytest.mark.parametrize("covariance", ["full", "tied-low-rank"])
def test_merged_streams_equal_one(data, covariance):
    features, targets = data
    directions = class_directions(features, targets, CLASSES, 2)
    options = {"directions": directions} if covariance == "tied-low-rank" else {}
    first = streamed(features[:200], targets[:200], covariance, **options)
    first.merge(streamed(features[200:], targets[200:], covariance, seed=1, **options))
    whole = streamed(features, targets, covariance, **options)
    exact = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(first.density()(features), whole.density()(features), **exact)
    assert first.scorer().normalizer.low == pytest.approx(whole.scorer().normalizer.low, rel=1e-9)


def test_streams_with_pilots_of_their_own_do_not_merge(data):
    features, targets = data
    first = streamed(features[:300], targets[:300], "tied-low-rank")
    with pytest.raises(ValueError, match="directions"):
        first.merge(streamed(features[300:], targets[300:], "tied-low-rank"))


def test_the_sample_is_uniform_and_bounded(data):
    """Each sample is kept as often as any other, however late it arrives."""
    features, targets = data
    features = torch.arange(600.0)[:, None].expand(600, WIDTH) + features
    kept = torch.zeros(600)
    for seed in range(60):
        stream = streamed(features, targets, "tied", seed=seed, sample=100)
        chosen = stream._samples()
        assert len(chosen.keys) == 100
        kept += (features[:, None, 0] == chosen.features[:, 0]).any(1)
    thirds = kept.view(3, 200).sum(1) / kept.sum()
    assert ((thirds - 1 / 3).abs() < 0.03).all()


def test_normalised_parts_are_those_of_a_fit(data):
    features, targets = data
    options = {"normalize_features": True, "parts": (4, 6)}
    density = streamed(features, targets, "tied-low-rank", size=200, **options).density()
    whole = fit_gaussians(features, targets, CLASSES, "tied-low-rank", "auto", 2, True, (4, 6))
    torch.testing.assert_close(density(features), whole(features), rtol=1e-9, atol=1e-9)


def test_an_empty_stream_is_rejected():
    with pytest.raises(ValueError, match="no samples"):
        DensityStream(3).scorer()


def test_few_samples_start_without_a_full_pilot():
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(40, WIDTH, generator=generator), torch.arange(40) % CLASSES
    assert torch.isfinite(streamed(features, targets, "tied-low-rank").density()(features)).all()


def test_a_classifier_has_the_density_of_a_stream(data, tmp_path):
    features, targets = data
    network = daedl.networks.FeatureHead(WIDTH, CLASSES)
    model = daedl.Classifier(network, "retrofit", covariance="tied-low-rank").eval()
    model.fitted = streamed(features, targets, "tied-low-rank").scorer()
    model.fit_outputs_held_out(*model.collect([(features, targets)]))
    model.save(tmp_path / "m.daedl")
    again = daedl.Classifier.load(tmp_path / "m.daedl")
    found, expected = again.predict(features), model.predict(features)
    assert torch.equal(found.log_alpha, expected.log_alpha)
    assert again.fitted.temperature != 1
