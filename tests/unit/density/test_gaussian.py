"""The Gaussian density against worked numbers, torch.distributions and scikit-learn."""

import copy

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.covariance import oas
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from torch.distributions import MultivariateNormal

from daedl.density import ClassStatistics, GaussianDensity, MinMax, fit_gaussians
from daedl.density.leave_one_out import left_out_log_density


def reference(features, statistics, covariances):
    """Mixture log density by torch.distributions, float64."""
    shares = (statistics.counts / statistics.counts.sum()).log()
    normals = MultivariateNormal(statistics.means, covariance_matrix=torch.stack(covariances))
    return (shares + normals.log_prob(features.double()[:, None])).logsumexp(-1)


def exact_statistics(means, covariances, counts):
    """Statistics whose unbiased covariances are exactly the given ones."""
    counts = torch.tensor(counts, dtype=torch.float64)
    scatter = torch.tensor(covariances, dtype=torch.float64) * (counts - 1)[:, None, None]
    return ClassStatistics(counts, torch.tensor(means, dtype=torch.float64), scatter, "full")


class Unbiased(BaseEstimator):
    """The paper's covariance, divided by N - 1; scikit-learn's own divides by N."""

    def fit(self, samples):
        self.covariance_ = np.cov(samples.T)
        return self


def test_worked_numbers():
    statistics = exact_statistics(
        [[0.0, 0.0], [3.0, 0.0]], [[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 0.5]]], [600, 400]
    )
    density = GaussianDensity.fit(statistics)
    feature = torch.tensor([[1.0, 1.0]])
    each = density.class_log_densities(feature)[0] - torch.tensor([0.6, 0.4]).double().log()
    assert each.tolist() == pytest.approx([-2.83788, -3.83788], abs=5e-6)
    log_density = density(feature)
    assert float(log_density) == pytest.approx(-3.12936, abs=5e-6)
    # Without the class weights, as in the published code, it would be another score.
    assert float(each.logsumexp(-1)) == pytest.approx(-2.52462, abs=5e-6)
    assert float(MinMax(-6.0, -2.0)(each.logsumexp(-1))) == pytest.approx(0.868846, abs=5e-7)
    score = MinMax(low=-6.0, high=-2.0)(log_density)
    assert float(score) == pytest.approx(0.717659, abs=5e-7)
    logits = torch.tensor([2.0, 0.0, -1.0])
    assert float((score * logits).exp().sum()) == pytest.approx(5.68887, abs=5e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_full_covariance_is_a_mixture_of_normals(blobs, dtype):
    features, targets = blobs
    statistics = ClassStatistics.of(features, targets, 3)
    density = GaussianDensity.fit(statistics).cast(dtype)
    assert (density.amount == 0).all()
    expected = reference(features, statistics, list(statistics.covariances()))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(density(features), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("structure", ["tied", "diagonal"])
def test_other_structures_are_mixtures_of_normals(blobs, structure):
    features, targets = blobs
    statistics = ClassStatistics.of(features, targets, 3, structure)
    covariances = list(statistics.covariances())
    if structure == "tied":
        covariances = covariances * 3
    else:
        covariances = [torch.diag(variances) for variances in covariances]
    expected = reference(features, statistics, covariances)
    torch.testing.assert_close(
        GaussianDensity.fit(statistics)(features), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shrinkage", ["auto", 0.2])
def test_low_rank_is_a_mixture_of_probabilistic_pcas(dtype, shrinkage):
    """Likelihood and covariance against scikit-learn, whose PCA divides by N − 1 as well."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(90, 12, generator=generator) @ torch.randn(12, 12, generator=generator)
    targets = torch.arange(90) % 2
    statistics = ClassStatistics.of(features, targets, 2)
    density = GaussianDensity.fit(statistics, shrinkage, rank=3).cast(dtype)
    assert density.structure == "low-rank"
    covariances = []
    for c, amount in enumerate(density.amount.tolist()):
        own = features[targets == c].double()
        covariance = torch.tensor(PCA(n_components=3).fit(own).get_covariance())
        mean_variance = own.var(0).mean() * torch.eye(12, dtype=torch.float64)
        covariances.append((1 - amount) * covariance + amount * mean_variance)
    expected = reference(features, statistics, covariances)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(density(features), expected, rtol=tolerance, atol=tolerance)
    for c, covariance in enumerate(covariances):
        assert float(density.condition[c]) == pytest.approx(np.linalg.cond(covariance), rel=1e-9)


def test_low_rank_requires_no_shrinkage_with_few_samples():
    """20 samples per class of 40 features: 4 directions and the variance of the others are estimated."""
    features = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    statistics = ClassStatistics.of(features, torch.arange(40) % 2, 2)
    assert (GaussianDensity.fit(statistics, rank=4).amount == 0).all()
    assert (GaussianDensity.fit(statistics).amount > 0).all()
    # With as many directions as samples nothing is left for the others.
    assert (GaussianDensity.fit(statistics, rank=18).amount > 0).all()


def test_low_rank_of_all_features_is_full(blobs):
    features, targets = blobs
    statistics = ClassStatistics.of(features, targets, 3)
    density = GaussianDensity.fit(statistics, rank=16)
    assert density.rank == 3
    expected = GaussianDensity.fit(statistics)(features)
    torch.testing.assert_close(density(features), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal", "low-rank"])
def test_normalized_features_are_those_divided_by_their_norms(blobs, covariance):
    features, targets = blobs
    unit = features.double() / features.double().norm(dim=1, keepdim=True)
    density = fit_gaussians(
        features.double(), targets, 3, covariance, rank=2, normalize_features=True
    )
    expected = fit_gaussians(unit, targets, 3, covariance, rank=2)(unit)
    torch.testing.assert_close(density(features), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(density(1e6 * features), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(density(1e35 * features), expected, rtol=1e-6, atol=1e-6)


def test_zero_vectors_have_a_density_after_normalization(blobs):
    features, targets = blobs
    features = features.clone()
    features[:3] = 0
    density = fit_gaussians(features, targets, 3, normalize_features=True)
    assert torch.isfinite(density(features)).all()
    assert torch.isfinite(left_out_log_density(density, features, targets)).all()
    torch.testing.assert_close(density(torch.zeros(1, 4)), density(features[:1]))


def test_class_posteriors_equal_quadratic_discriminant_analysis(blobs):
    features, targets = blobs
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 3))
    ours = density.class_log_densities(features).softmax(-1)
    qda = QuadraticDiscriminantAnalysis(solver="eigen", covariance_estimator=Unbiased())
    qda.fit(features.double().numpy(), targets.numpy())
    np.testing.assert_allclose(ours, qda.predict_proba(features.double().numpy()), atol=1e-9)


def test_more_features_than_one_scoring_block(blobs, monkeypatch):
    features, targets = blobs
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 3))
    expected = density(features)
    monkeypatch.setattr("daedl.density.gaussian._ELEMENTS", 100)
    torch.testing.assert_close(density(features), expected, rtol=1e-13, atol=1e-13)


def test_singular_class_is_shrunk_as_in_scikit_learn():
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(40, 30, generator=generator, dtype=torch.float64)
    targets = torch.tensor([0] * 12 + [1] * 28)
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 2))
    for c in (0, 1):
        _, amount = oas(features[targets == c].numpy())
        assert float(density.amount[c]) == pytest.approx(amount, rel=1e-9)
    assert torch.isfinite(density(features)).all()


def test_constant_features_of_a_diagonal_covariance_are_shrunk():
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(59, 6, generator=generator)
    features[:, 2] = 1.0
    statistics = ClassStatistics.of(features, torch.zeros(59).long(), 1, "diagonal")
    density = GaussianDensity.fit(statistics)
    assert float(density.amount) == pytest.approx(1 / 60)
    assert torch.isfinite(density(features)).all()


@pytest.mark.parametrize(("condition", "shrunk"), [(1e9, False), (1e11, True)])
def test_condition_number_defines_singular(condition, shrunk):
    means, counts = np.zeros((1, 3)), [100.0]
    covariance = np.diag([1.0, 0.5, 1 / condition])
    density = GaussianDensity.fit(exact_statistics(means, covariance[None], counts))
    assert (float(density.amount) > 0) == shrunk


def test_only_the_singular_class_is_shrunk():
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(500, 6, generator=generator)
    targets = (torch.arange(500) < 5).long()
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 2))
    assert density.amount[0] == 0
    assert 0 < density.amount[1] <= 1


def test_tiny_class_constant_feature_and_more_features_than_samples():
    """Ten classes of at most 20 samples, one of 3, in 32 dimensions, one of which is constant."""
    generator = torch.Generator().manual_seed(4)
    targets = torch.cat([torch.arange(9).repeat_interleave(20), torch.full((3,), 9)])
    features = torch.randn(183, 32, generator=generator) + targets[:, None]
    features[:, 7] = 0.25
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 10))
    shrunk = density.shrunk
    assert (shrunk.amount > 0).all()
    assert shrunk.amount[9] > 0.5
    assert torch.isfinite(shrunk.condition).all()
    assert (shrunk.effective_rank >= 1).all()
    assert (shrunk.effective_rank <= 32).all()
    inside, outside = density(features), density(features + 50)
    assert torch.isfinite(inside).all()
    assert inside.min() > outside.max()


@pytest.mark.parametrize("copies", [1, 5])
def test_class_without_spread_uses_that_of_the_others(copies):
    generator = torch.Generator().manual_seed(5)
    features = torch.cat([torch.randn(50, 3, generator=generator), torch.ones(copies, 3)])
    targets = torch.tensor([0] * 50 + [1] * copies)
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 2))
    assert density.amount.tolist() == [0, 1]
    assert torch.isfinite(density(features)).all()


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_copies_in_float64_have_no_spread(structure):
    """Their mean differs from them by rounding only."""
    generator = torch.Generator().manual_seed(5)
    one = torch.randn(3, generator=generator, dtype=torch.float64)
    others = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    features, targets = torch.cat([others, one.expand(41, 3)]), torch.tensor([0] * 50 + [1] * 41)
    statistics = ClassStatistics.of(features, targets, 2, structure)
    assert statistics.scatter[1].abs().max() > 0  # rounding
    density = GaussianDensity.fit(statistics)
    assert density.shrunk.amount[1] == (1 if structure == "full" else pytest.approx(1 / 42))
    assert float(density.shrunk.scale[1]) == pytest.approx(float(density.shrunk.scale[0]))
    alone = ClassStatistics.of(features[50:], targets[50:] - 1, 1, structure)
    with pytest.raises(ValueError, match="constant within every class"):
        GaussianDensity.fit(alone)


def test_covariance_that_is_singular_without_one_sample_is_shrunk():
    """Otherwise leave-one-out densities would be undefined."""
    generator = torch.Generator().manual_seed(6)
    for samples, shrunk in ((21, True), (22, False)):
        features = torch.randn(samples, 20, generator=generator, dtype=torch.float64)
        statistics = ClassStatistics.of(features, torch.zeros(samples).long(), 1)
        density = GaussianDensity.fit(statistics)
        assert (float(density.amount) > 0) == shrunk
        if shrunk:
            left_out = left_out_log_density(density, features, torch.zeros(samples).long())
            assert left_out.min() > -1e3


def test_shrinkage_below_rounding_is_rejected():
    features = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    statistics = ClassStatistics.of(features, torch.zeros(5).long(), 1)
    with pytest.raises(ValueError, match="singular"):
        GaussianDensity.fit(statistics, shrinkage=1e-20)


def test_condition_number_and_effective_rank(blobs):
    statistics = ClassStatistics.of(*blobs, 3)
    shrunk = GaussianDensity.fit(statistics, shrinkage=0.1).shrunk
    for c, covariance in enumerate(statistics.covariances()):
        mean_variance = covariance.trace() / 4
        used = 0.9 * covariance + 0.1 * mean_variance * torch.eye(4, dtype=torch.float64)
        assert float(shrunk.condition[c]) == pytest.approx(np.linalg.cond(used), rel=1e-9)
        values = np.linalg.eigvalsh(covariance)
        shares = values / values.sum()
        expected = np.exp(-(shares * np.log(shares)).sum())
        assert float(shrunk.effective_rank[c]) == pytest.approx(expected, rel=1e-9)


def test_invalid_input_is_rejected(blobs):
    features, targets = blobs
    statistics = ClassStatistics.of(features, targets, 4)
    with pytest.raises(ValueError, match="class 3"):
        GaussianDensity.fit(statistics)
    statistics = ClassStatistics.of(features, targets, 3)
    with pytest.raises(ValueError, match="shrinkage is 2"):
        GaussianDensity.fit(statistics, shrinkage=2)
    density = GaussianDensity.fit(statistics)
    with pytest.raises(ValueError, match="4 columns"):
        density(torch.zeros(5, 84))
    constant = ClassStatistics.of(torch.ones(10, 4), torch.arange(10) % 2, 2)
    with pytest.raises(ValueError, match="constant within every class"):
        GaussianDensity.fit(constant)
    singular = ClassStatistics.of(features[:3], torch.tensor([0, 0, 1]), 2)
    with pytest.raises(ValueError, match="singular"):
        GaussianDensity.fit(singular, shrinkage=0.0)
    for tied, rank in ((True, 2), (False, 0)):
        statistics = ClassStatistics.of(features, targets, 3, "tied" if tied else "full")
        with pytest.raises(ValueError, match=f"rank is {rank}"):
            GaussianDensity.fit(statistics, rank=rank)


def test_dtypes_are_kept_by_half_float_and_deepcopy(blobs):
    features, targets = blobs
    density = GaussianDensity.fit(ClassStatistics.of(features, targets, 3))
    expected = density(features)
    for other in (copy.deepcopy(density).half(), copy.deepcopy(density).float().to("cpu")):
        assert other.scatter.dtype == torch.float64
        assert torch.equal(other(features), expected)
