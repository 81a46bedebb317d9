"""A shared covariance with low-rank parts per class, against NumPy and SciPy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from daedl.density import (
    ClassStatistics,
    DensityScorer,
    GaussianDensity,
    class_directions,
    fit_gaussians,
    fitting,
    refit_gaussians,
    tensors,
)
from daedl.density.class_parts import SAMPLES_PER_DIRECTION
from daedl.density.directions import PILOT, affordable_rank
from daedl.density.leave_one_out import left_out_log_density

CLASSES, WIDTH, RANK = 6, 12, 2
# The last classes have too few samples for parts of their own.
SIZES = (120, 110, 100, 60, 7, 1)


def clusters(seed=0, sizes=SIZES, own=3.0):
    """Float64 features in random order, each class with large variance along one direction."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.repeat_interleave(torch.tensor(sizes))
    targets = targets[torch.randperm(len(targets), generator=generator)]
    means, directions = torch.randn(2, len(sizes), WIDTH, generator=generator).double()
    features = torch.randn(len(targets), WIDTH, generator=generator).double() + means[targets]
    along = torch.randn(len(targets), 1, generator=generator).double()
    return features + own * along * directions[targets], targets


FEATURES, TARGETS = clusters()
DIRECTIONS = class_directions(FEATURES, TARGETS, CLASSES, RANK)


def statistics_of(features=FEATURES, targets=TARGETS, directions=DIRECTIONS):
    return ClassStatistics.of(features, targets, CLASSES, "tied-low-rank", directions=directions)


def expected(features, targets, point, amount, scale=None):
    """Log density of `point`, from the scatter of each class; `scale` is that of the data if None."""
    residual, freedom, groups = 0, 0, []
    for c in np.unique(targets):
        group = features[targets == c]
        n, mean = len(group), group.mean(0)
        scatter = (group - mean).T @ (group - mean)
        omega, part = DIRECTIONS[c].double().numpy(), np.zeros((WIDTH, WIDTH))
        freedom += n - 1
        if n > SAMPLES_PER_DIRECTION * RANK:
            sketch = omega @ scatter
            part = sketch.T @ np.linalg.inv(sketch @ omega.T) @ sketch
            freedom -= RANK
        residual = residual + scatter - part
        groups.append((n, mean, part / max(n - 1, 1)))
    shared = residual / freedom
    target = np.trace(shared) / WIDTH if scale is None else scale
    shared = (1 - amount) * shared + amount * target * np.eye(WIDTH)
    return logsumexp(
        [
            np.log(n / len(targets)) + multivariate_normal(mean, shared + part).logpdf(point)
            for n, mean, part in groups
        ]
    )


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_the_density_is_that_of_the_covariances(shrinkage):
    density = GaussianDensity.fit(statistics_of(), shrinkage)
    points = FEATURES[::40] + 1
    for point, found in zip(points.numpy(), density(points).tolist(), strict=True):
        assert found == pytest.approx(
            expected(FEATURES.numpy(), TARGETS.numpy(), point, shrinkage), rel=1e-10
        )


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_left_out_densities_equal_fits_without_the_sample(shrinkage):
    """With the shrinkage held fixed; also for classes without a part, and the sample of a class of one."""
    density = GaussianDensity.fit(statistics_of(), shrinkage)
    found = left_out_log_density(density, FEATURES, TARGETS)
    few = (TARGETS >= 4).nonzero()[:, 0].tolist()
    for index in [*range(0, len(FEATURES), 13), *few]:
        keep = np.arange(len(FEATURES)) != index
        without = expected(
            FEATURES.numpy()[keep],
            TARGETS.numpy()[keep],
            FEATURES[index].numpy(),
            shrinkage,
            float(density.scale),
        )
        assert float(found[index]) == pytest.approx(without, rel=1e-10)


def test_samples_outside_the_pilot_do_not_change_the_directions():
    """So that leaving one of them out is exact although the directions depend on samples."""
    later = [(c == TARGETS).nonzero()[PILOT:, 0].tolist() for c in range(4)]
    keep = torch.ones(len(TARGETS), dtype=torch.bool)
    keep[[index for rows in later for index in rows[::5]]] = False
    again = class_directions(FEATURES[keep], TARGETS[keep], CLASSES, RANK)
    assert torch.equal(again, DIRECTIONS)


def test_directions_point_along_the_variance_that_a_class_has_of_its_own():
    """And not along a factor with more variance that all classes share."""
    generator = torch.Generator().manual_seed(0)
    own, shared = torch.randn(20, 64, generator=generator), torch.randn(64, generator=generator)
    targets = torch.arange(1000) % 20
    features = torch.randn(1000, 64, generator=generator)
    features += torch.randn(1000, 1, generator=generator) * own[targets]
    features += 5 * torch.randn(1000, 1, generator=generator) * shared
    found = class_directions(features, targets, 20, 1).float()[:, 0]
    assert torch.cosine_similarity(found, own, dim=1).abs().median() > 0.6
    assert torch.cosine_similarity(found, shared[None], dim=1).abs().median() < 0.2


def test_a_sample_in_the_sketch_is_a_sum_and_merges():
    whole = statistics_of()
    half = statistics_of(FEATURES[::2], TARGETS[::2])
    merged = half.merge(statistics_of(FEATURES[1::2], TARGETS[1::2]))
    for name in ("counts", "means", "scatter", "sketch"):
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name), rtol=0, atol=1e-9)
    for c in range(CLASSES):
        group = FEATURES[c == TARGETS].numpy()
        scatter = (group - group.mean(0)).T @ (group - group.mean(0))
        np.testing.assert_allclose(whole.sketch[c], DIRECTIONS[c].numpy() @ scatter, atol=1e-9)
    tied = ClassStatistics.of(FEATURES, TARGETS, CLASSES, "tied")
    torch.testing.assert_close(whole.reduced("tied").scatter, tied.scatter)


def test_statistics_along_other_directions_do_not_merge():
    with pytest.raises(ValueError, match="can't merge"):
        statistics_of().merge(statistics_of(directions=-DIRECTIONS))


def test_structure_and_directions_belong_together():
    with pytest.raises(ValueError, match="without directions"):
        ClassStatistics.empty(CLASSES, WIDTH, "tied-low-rank")
    with pytest.raises(ValueError, match="with directions"):
        ClassStatistics.empty(CLASSES, WIDTH, "tied", directions=DIRECTIONS)


@pytest.mark.parametrize("limit", [0, tensors._EXACT_VALUES])
def test_restored_densities_are_the_same(monkeypatch, limit):
    """Bit for bit, also where statistics are rounded to float32, and with the same statistics."""
    monkeypatch.setattr(tensors, "_EXACT_VALUES", limit)
    density = fit_gaussians(FEATURES.float(), TARGETS, CLASSES, "tied-low-rank", rank=RANK)
    state = {name: each.clone() for name, each in density.state_dict().items()}
    again = GaussianDensity.restore(state, density.settings())
    assert torch.equal(again(FEATURES), density(FEATURES))
    assert again.structure == "tied-low-rank"
    assert state["sketch"].dtype == (torch.float64 if limit else torch.float32)
    assert state["scatter"].shape == (WIDTH * (WIDTH + 1) // 2,)
    for name in ("means", "scatter", "directions", "sketch"):
        exact = getattr(density.statistics, name)
        assert torch.equal(getattr(again.statistics, name), exact)
    assert torch.equal(density.statistics.directions, DIRECTIONS)


def test_a_file_can_not_claim_more_features_than_its_scatter_has():
    density = fit_gaussians(FEATURES, TARGETS, CLASSES, "tied-low-rank", rank=RANK)
    wide = density.state_dict() | {"means": torch.zeros(1, 10**7)}
    with pytest.raises(ValueError, match="triangle"):
        GaussianDensity.restore(wide, density.settings())


def test_more_samples_are_merged():
    more, labels = clusters(1, own=1.0)
    density = fit_gaussians(FEATURES, TARGETS, CLASSES, "tied-low-rank", rank=RANK)
    merged = refit_gaussians(density, more, labels)
    whole = GaussianDensity.fit(
        statistics_of(torch.cat([FEATURES, more]), torch.cat([TARGETS, labels]))
    )
    torch.testing.assert_close(merged(more), whole(more), rtol=1e-9, atol=1e-9)


def test_the_change_of_the_mean_log_density_follows_from_the_statistics():
    """By which ranges are shifted; approximately, because the scatter of a class is not stored."""
    density = GaussianDensity.fit(statistics_of())
    merged = refit_gaussians(density, *clusters(1, own=1.0))
    row = torch.arange(len(TARGETS))
    before, after = (
        float(each.class_log_densities(FEATURES)[row, TARGETS].mean()) for each in (density, merged)
    )
    assert abs(after - before) > 0.5
    found = merged.mean_log_density(density.statistics) - density.mean_log_density(
        density.statistics
    )
    assert found == pytest.approx(after - before, rel=0.2)


@pytest.mark.parametrize(("own", "selected"), [(3.0, "tied-low-rank"), (0.0, "tied")])
def test_auto_selects_parts_where_classes_have_directions_of_their_own(monkeypatch, own, selected):
    monkeypatch.setattr(fitting, "_CANDIDATE_BYTES", 8 * WIDTH**2)
    features, targets = clusters(sizes=(100,) * 6, own=own)
    density = fit_gaussians(features, targets, 6, "auto", rank=RANK)
    assert set(density.candidates) == {"tied", "tied-low-rank", "diagonal"}
    assert density.structure == selected


def test_parts_detect_what_a_tied_covariance_does_not():
    """Points with the deviation of one class at the mean of another."""
    features, targets = clusters(sizes=(200,) * 6, own=4.0)
    known, labels = features[::2], targets[::2]
    inside, others = features[1::2], targets[1::2]
    means = torch.stack([known[labels == c].mean(0) for c in range(6)])
    moved = inside - means[others] + means[(others + 1) % 6]
    figures = {}
    for covariance in ("tied", "tied-low-rank"):
        density = fit_gaussians(known, labels, 6, covariance, rank=RANK)
        figures[covariance] = float((density(inside).median() > density(moved)).double().mean())
    assert figures["tied-low-rank"] > figures["tied"] + 0.2


def test_the_rank_is_limited_by_memory():
    assert affordable_rank(16, 1000, 2048) == 3
    assert affordable_rank(16, 10, 512) == 16
    assert affordable_rank(16, 10, 8) == 7
    with pytest.raises(ValueError, match="covariance='tied'"):
        class_directions(torch.zeros(2, 2048), torch.zeros(2).long(), 100_000, 16)


def test_statistics_do_not_grow_with_the_square_of_the_features_per_class():
    directions = torch.ones(200, 3, 64, dtype=torch.int8)
    statistics = ClassStatistics.empty(200, 64, "tied-low-rank", directions=directions)
    held = sum(each.numel() for each in vars(statistics).values() if torch.is_tensor(each))
    assert held < 200 * 64**2 / 8


def test_few_samples_per_class_are_pooled():
    """Without a class part, the density is that of a tied covariance."""
    few, labels = FEATURES[:60], torch.arange(60) % CLASSES
    parts = fit_gaussians(few, labels, CLASSES, "tied-low-rank", rank=RANK)
    tied = fit_gaussians(few, labels, CLASSES, "tied")
    torch.testing.assert_close(parts(few), tied(few))


def test_constant_features_of_a_class_have_no_part():
    features = torch.where((TARGETS == 0)[:, None], torch.ones(WIDTH).double(), FEATURES)
    density = GaussianDensity.fit(statistics_of(features))
    assert torch.isfinite(density(features)).all()


@pytest.mark.parametrize("normalized", [False, True])
def test_far_points_have_low_scores(normalized):
    features = FEATURES.float()
    scorer = DensityScorer.fit(
        features,
        TARGETS,
        CLASSES,
        "tied-low-rank",
        normalizer="half-quantile",
        leave_one_out=True,
        rank=RANK,
        normalize_features=normalized,
    )
    density, score = scorer(torch.cat([features, 1e6 * features, 1e30 * features[:1].sign()]))
    assert torch.isfinite(density).all()
    assert normalized or (score[len(features) :] == 0).all()
