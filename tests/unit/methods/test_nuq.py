"""NUQ: worked numbers, scikit-learn's neighbours, estimated variance, bandwidth."""

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors

from daedl.methods import Softmax, knn
from daedl.methods import nuq as module
from daedl.methods.nuq import NUQ
from daedl.outputs import Outputs


def with_logits(features, classes=3):
    generator = torch.Generator().manual_seed(1)
    return Outputs(features, torch.randn(len(features), classes, generator=generator).to(features))


def fitted(features, targets, classes=3, **arguments):
    return NUQ(**arguments).fit(with_logits(features, classes), targets)


def clusters(count=300, width=5, seed=0, apart=3.0):
    """Three Gaussian classes, which overlap if they are less than 3 apart."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 3
    noise = torch.randn(count, width, generator=generator)
    return apart * torch.eye(width)[targets] + noise, targets


def reference(features, targets, queries, k, log_weight, bandwidth, shares=None):
    """ln τ² and the class from scikit-learn's neighbours, in NumPy and float64."""
    wide, labels = features.double().numpy(), targets.numpy()
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(wide)
    distances, indices = search.kneighbors(queries.double().numpy())
    shares = np.bincount(labels) / len(labels) if shares is None else shares
    scores, classes = [], []
    for d, i in zip(distances, indices, strict=True):
        log_kernel = -((d / bandwidth) ** 2) / 2
        log_sums = [
            logsumexp(np.append(log_kernel[labels[i] == c], log_weight + np.log(share)))
            for c, share in enumerate(shares)
        ]
        top = int(np.argmax(log_sums))
        total = logsumexp(np.append(log_kernel, log_weight))
        scores.append(log_sums[top] + logsumexp(np.delete(log_sums, top)) - 3 * total)
        classes.append(top)
    return np.array(scores), np.array(classes)


@pytest.mark.parametrize(
    ("bandwidth", "log_weight", "expected"),
    [(1.0, 0.0, -2.759391), (1.0, -100.0, -2.767837), (0.25, 0.0, -1.672276)],
)
def test_worked_numbers(bandwidth, log_weight, expected):
    """Two of class 0 at 0 and 1, one of class 1 at 2, none of class 2 among the 3 nearest of 0.5."""
    features, targets = torch.tensor([[0.0], [1.0], [2.0], [1e4]]), torch.tensor([0, 0, 1, 2])
    arguments = {"k": 3, "bandwidth": bandwidth, "log_weight": log_weight}
    computed = fitted(features, targets, **arguments)(torch.tensor([[0.5]]))
    assert computed.item() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_weight", [-100.0, 0.0])
def test_against_scikit_learn(log_weight, dtype):
    features, targets = clusters()
    queries = clusters(60, seed=1)[0].to(dtype)
    arguments = {"k": 20, "log_weight": log_weight, "bandwidth": 0.8}
    method = NUQ(**arguments)
    fit_ = method.fit(with_logits(features.to(dtype)), targets)
    computed = method.predict(with_logits(queries), fit_).epistemic
    assert computed.dtype == dtype
    expected, _ = reference(features, targets, queries, **arguments)
    np.testing.assert_allclose(computed.double().numpy(), expected, rtol=1e-4, atol=1e-3)


def test_score_is_the_variance_of_the_estimate():
    """2^(−H/2) τ² is the variance of η between training sets, here with H = 1."""
    generator = torch.Generator().manual_seed(0)
    estimates, variances = [], []
    for _ in range(200):
        features = 4 * torch.rand(150, 1, generator=generator) - 2
        targets = (torch.rand(150, generator=generator) < 0.3).long()
        computed = fitted(features, targets, classes=2, k=149, bandwidth=0.3)
        variances.append(computed(torch.zeros(1, 1)).exp().item() / 2**0.5)
        kernel = torch.exp(-((features[:, 0] / 0.3) ** 2) / 2)
        estimates.append((kernel[targets == 1].sum() / kernel.sum()).item())
    assert np.mean(variances) == pytest.approx(np.var(estimates), rel=0.2)


def test_only_the_nearest_neighbours_matter():
    features, targets = clusters()
    query = torch.zeros(1, 5)
    far = (features - query).norm(dim=1).argsort()[7:]
    moved = features.clone()
    moved[far] *= 100
    computed = [fitted(f, targets, k=7, bandwidth=1.0)(query) for f in (features, moved)]
    torch.testing.assert_close(*computed, rtol=1e-4, atol=1e-4)
    assert abs(fitted(features, targets, k=9, bandwidth=1.0)(query) - computed[0]) > 0.1


def test_score_increases_with_distance_up_to_a_constant():
    features, targets = clusters(apart=30.0)
    steps = 30 + torch.tensor([0.0, 4, 6, 8, 10, 20, 1e3, 1e20, 1e30])
    ray = torch.zeros(9, 5)
    ray[:, 0] = steps
    computed = fitted(features, targets, bandwidth=1.0)(ray)
    assert (computed[:6].diff() > 1).all()
    # (1/3) (2/3) ν / ν²: only the prior remains.
    assert computed[-3:].tolist() == pytest.approx([math.log(2 / 9) + 100] * 3, rel=1e-5)


def test_neighbours_with_different_labels_increase_the_score():
    features, targets = clusters(apart=30.0)
    mixed = torch.randint(0, 3, (300,), generator=torch.Generator().manual_seed(0))
    sure, unsure = (fitted(features, t, bandwidth=1.0)(features) for t in (targets, mixed))
    assert sure.max() < unsure.min()


def test_heavy_prior_ranks_distant_samples_below_near_ones():
    """With ν = 1 and ten classes; the default ν = e⁻¹⁰⁰ does not."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(400) % 10
    features = 50 * torch.eye(10)[targets] + 0.1 * torch.randn(400, 10, generator=generator)
    near = 50 * torch.eye(10)[:1]
    near[0, 1] = 2.7  # S = 20 exp(−2.7² / 2) = 0.5
    both = torch.cat([near, torch.full((1, 10), 1e3)])
    released, ours = (
        fitted(features, targets, 10, bandwidth=1.0, log_weight=weight)(both)
        for weight in (0.0, -100.0)
    )
    assert released[0] > released[1]
    assert ours[0] < ours[1] - 50


def test_common_offset_of_all_features_does_not_change_scores():
    features, targets = clusters()
    queries = clusters(40, seed=1)[0]
    computed = [
        fitted(features + offset, targets, bandwidth=0.8)(queries + offset) for offset in (0, 3e3)
    ]
    torch.testing.assert_close(*computed, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("elements", [1, 2000])
def test_block_size_does_not_change_scores(elements, monkeypatch):
    features, targets = clusters()
    queries = clusters(41, seed=1)[0]
    whole = fitted(features, targets, bandwidth=0.8)(queries)
    monkeypatch.setattr(knn, "_ELEMENTS", elements)
    computed = fitted(features, targets, bandwidth=0.8)(queries)
    torch.testing.assert_close(computed, whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15])
def test_features_of_any_scale_have_finite_scores(scale):
    features, targets = clusters()
    computed = fitted(scale * features, targets)
    for queries in (features, scale * features, 1e30 * features):
        assert torch.isfinite(computed(queries)).all()


@pytest.mark.parametrize(("apart", "log_weight"), [(1.0, -100.0), (2.0, -100.0), (2.0, 0.0)])
def test_bandwidth_has_the_best_leave_one_out_accuracy(apart, log_weight):
    """Against brute force: every sample with a fit to all others."""
    features, targets = clusters(48, apart=apart)
    nearest = torch.cdist(features.double(), features.double()).sort(1).values[:, 1:7]
    low, high = nearest[:, 0].min().item(), nearest[:, -1].max().item()
    right = {}
    for bandwidth in np.geomspace(low, high, 5):
        right[bandwidth] = 0
        for i in range(48):
            others = torch.arange(48) != i
            arguments = (features[others], targets[others], features[i : i + 1])
            _, classes = reference(*arguments, 6, log_weight, bandwidth, [1 / 3] * 3)
            right[bandwidth] += int(classes[0] == targets[i])
    best = max(right.values())
    computed = fitted(features, targets, k=6, log_weight=log_weight).bandwidth
    assert min(right.values()) < best
    assert computed == pytest.approx(max(h for h in right if right[h] == best), rel=1e-5)


def test_largest_of_equally_accurate_bandwidths_is_selected():
    features, targets = clusters(apart=100.0)
    nearest = torch.cdist(features, features).sort(1).values[:, 20]
    assert fitted(features, targets).bandwidth == pytest.approx(nearest.max().item(), rel=1e-4)


def test_duplicate_samples_do_not_define_the_bandwidth():
    features, targets = clusters(60)
    copies = features.repeat(2, 1), targets.repeat(2)
    bandwidth = fitted(*copies, k=5).bandwidth
    assert bandwidth >= torch.pdist(features).min() * 0.999
    assert fitted(torch.ones(60, 5), targets).bandwidth == 1.0


def test_random_subset_selects_the_bandwidth(monkeypatch):
    features, targets = clusters(400, apart=1.0)
    monkeypatch.setattr(module, "_TUNING", 30)
    state = torch.get_rng_state()
    computed = [fitted(features, targets, seed=seed).bandwidth for seed in (0, 0, 1, 2, 3)]
    assert torch.equal(torch.get_rng_state(), state)
    assert computed[0] == computed[1]
    assert len(set(computed)) > 1


def test_given_bandwidth_is_used():
    assert fitted(*clusters(), bandwidth=0.37).bandwidth == 0.37


def test_probabilities_equal_softmax():
    features, targets = clusters()
    outputs = with_logits(features)
    p = NUQ().predict(outputs, NUQ().fit(outputs, targets))
    assert torch.equal(p.probs, Softmax().predict(outputs, None).probs)
    assert set(p.scores()) == {"aleatoric", "epistemic"}
    assert NUQ().training_method() == Softmax()


def test_more_samples_than_neighbours_are_required():
    features, targets = clusters(21)
    assert torch.isfinite(fitted(features, targets)(features)).all()
    with pytest.raises(ValueError, match="k is 20 but there are 20"):
        fitted(features[:20], targets[:20])
