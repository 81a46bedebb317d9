"""NUQ: worked numbers, scikit-learn's neighbours, the variance that it estimates, its bandwidth."""

import math
import multiprocessing
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors

import daedl
from daedl.checks import NotFittedError
from daedl.methods import Softmax, knn
from daedl.methods import nuq as module
from daedl.methods.nuq import NUQ
from daedl.networks import MLP
from daedl.outputs import Outputs

fit = partial(daedl.fit, accelerator="cpu", progress=False)


def with_logits(features, classes=3):
    generator = torch.Generator().manual_seed(1)
    return Outputs(features, torch.randn(len(features), classes, generator=generator).to(features))


def fitted(features, targets, classes=3, **arguments):
    return NUQ(**arguments).fit(with_logits(features, classes), targets)


def clusters(count=300, width=5, seed=0, apart=3.0):
    """Three classes around points of their own, overlapping where they are less than 3 apart."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 3
    noise = torch.randn(count, width, generator=generator)
    return apart * torch.eye(width)[targets] + noise, targets


def reference(features, targets, queries, k, log_weight, bandwidth, shares=None):
    """ln τ² and the class, in NumPy and float64, from scikit-learn's neighbours."""
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
    found = fitted(features, targets, **arguments)(torch.tensor([[0.5]]))
    assert found.item() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_weight", [-100.0, 0.0])
def test_against_scikit_learn(log_weight, dtype):
    features, targets = clusters()
    queries = clusters(60, seed=1)[0].to(dtype)
    arguments = {"k": 20, "log_weight": log_weight, "bandwidth": 0.8}
    method = NUQ(**arguments)
    fit_ = method.fit(with_logits(features.to(dtype)), targets)
    found = method.predict(with_logits(queries), fit_).epistemic
    assert found.dtype == dtype
    expected, _ = reference(features, targets, queries, **arguments)
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1e-4, atol=1e-3)


def test_it_is_the_variance_of_the_estimate():
    """τ² times 2 to the −H/2 is how much η varies between sets of training samples, here in H = 1."""
    generator = torch.Generator().manual_seed(0)
    estimates, variances = [], []
    for _ in range(300):
        features = 4 * torch.rand(150, 1, generator=generator) - 2
        targets = (torch.rand(150, generator=generator) < 0.3).long()
        found = fitted(features, targets, classes=2, k=149, bandwidth=0.3)
        variances.append(found(torch.zeros(1, 1)).exp().item() / 2**0.5)
        kernel = torch.exp(-((features[:, 0] / 0.3) ** 2) / 2)
        estimates.append((kernel[targets == 1].sum() / kernel.sum()).item())
    assert np.mean(variances) == pytest.approx(np.var(estimates), rel=0.2)


def test_only_the_nearest_count():
    features, targets = clusters()
    query = torch.zeros(1, 5)
    far = (features - query).norm(dim=1).argsort()[7:]
    moved = features.clone()
    moved[far] *= 100
    found = [fitted(f, targets, k=7, bandwidth=1.0)(query) for f in (features, moved)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert abs(fitted(features, targets, k=9, bandwidth=1.0)(query) - found[0]) > 0.1


def test_rises_away_from_the_data_and_then_stays():
    features, targets = clusters(apart=30.0)
    steps = 30 + torch.tensor([0.0, 4, 6, 8, 10, 20, 1e3, 1e20, 1e30])
    ray = torch.zeros(9, 5)
    ray[:, 0] = steps
    found = fitted(features, targets, bandwidth=1.0)(ray)
    assert (found[:6].diff() > 1).all()
    # (1/3) (2/3) ν / ν², with nothing but the prior.
    assert found[-3:].tolist() == pytest.approx([math.log(2 / 9) + 100] * 3, rel=1e-5)


def test_disagreement_is_uncertain():
    features, targets = clusters(apart=30.0)
    mixed = torch.randint(0, 3, (300,), generator=torch.Generator().manual_seed(0))
    sure, unsure = (fitted(features, t, bandwidth=1.0)(features) for t in (targets, mixed))
    assert sure.max() < unsure.min()


def test_why_the_prior_is_light():
    """With ν = 1 and ten classes what is far away has a smaller variance than what is near."""
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


def test_an_offset_common_to_all_features_changes_nothing():
    features, targets = clusters()
    queries = clusters(40, seed=1)[0]
    found = [
        fitted(features + offset, targets, bandwidth=0.8)(queries + offset) for offset in (0, 3e3)
    ]
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("elements", [1, 2000])
def test_blocks_of_rows_change_nothing(elements, monkeypatch):
    features, targets = clusters()
    queries = clusters(41, seed=1)[0]
    whole = fitted(features, targets, bandwidth=0.8)(queries)
    monkeypatch.setattr(knn, "_ELEMENTS", elements)
    found = fitted(features, targets, bandwidth=0.8)(queries)
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e15])
def test_features_of_any_size_give_finite_scores(scale):
    features, targets = clusters()
    found = fitted(scale * features, targets)
    for queries in (features, scale * features, 1e30 * features):
        assert torch.isfinite(found(queries)).all()


@pytest.mark.parametrize(("apart", "log_weight"), [(1.0, -100.0), (2.0, -100.0), (2.0, 0.0)])
def test_the_bandwidth_is_the_best_of_the_candidates(apart, log_weight):
    """By brute force: every sample from a fit to all others."""
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
    found = fitted(features, targets, k=6, log_weight=log_weight).bandwidth
    assert min(right.values()) < best
    assert found == pytest.approx(max(h for h in right if right[h] == best), rel=1e-5)


def test_of_equally_good_bandwidths_the_largest():
    features, targets = clusters(apart=100.0)
    nearest = torch.cdist(features, features).sort(1).values[:, 20]
    assert fitted(features, targets).bandwidth == pytest.approx(nearest.max().item(), rel=1e-4)


def test_copies_of_a_sample_are_no_bandwidth():
    features, targets = clusters(60)
    copies = features.repeat(2, 1), targets.repeat(2)
    bandwidth = fitted(*copies, k=5).bandwidth
    assert bandwidth >= torch.pdist(features).min() * 0.999
    assert fitted(torch.ones(60, 5), targets).bandwidth == 1.0


def test_some_samples_choose_the_bandwidth(monkeypatch):
    features, targets = clusters(400, apart=1.0)
    monkeypatch.setattr(module, "_TUNING", 30)
    state = torch.get_rng_state()
    found = [fitted(features, targets, seed=seed).bandwidth for seed in (0, 0, 1, 2, 3)]
    assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1]
    assert len(set(found)) > 1


def test_a_bandwidth_of_ones_own_is_taken():
    assert fitted(*clusters(), bandwidth=0.37).bandwidth == 0.37


def test_probabilities_are_the_softmax_ones():
    features, targets = clusters()
    outputs = with_logits(features)
    p = NUQ().predict(outputs, NUQ().fit(outputs, targets))
    assert torch.equal(p.probs, Softmax().predict(outputs, None).probs)
    assert set(p.scores()) == {"aleatoric", "epistemic"}
    assert NUQ().training_method() == Softmax()


def test_restored_and_saved_predicts_the_same(blobs, tmp_path):
    torch.manual_seed(0)
    method = NUQ(k=7)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), method)
    fit(classifier, blobs, max_epochs=1)
    ours = classifier.predict(blobs[0]).epistemic
    outputs, _ = classifier.collect([blobs])
    again = method.restore(classifier.fitted.state_dict(), classifier.fitted.settings())
    torch.testing.assert_close(method.predict(outputs, again).epistemic, ours)
    classifier.save(tmp_path / "model.daedl")
    loaded = daedl.Classifier.load(tmp_path / "model.daedl", method=method)
    assert torch.equal(loaded.predict(blobs[0]).epistemic, ours)


def _fit_share(rank, folder, outputs, targets):
    """In one of two processes: fit to every second sample, and leave what came of it."""
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    share = Outputs(*(part[rank::2] for part in outputs))
    found = NUQ().fit(share, targets[rank::2])
    torch.save((found.state_dict(), found.settings()), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_processes_fit_to_the_samples_of_all(tmp_path):
    features, targets = clusters(301)
    outputs = with_logits(features)
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path, outputs, targets)
    processes = [context.Process(target=_fit_share, args=(rank, *arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    alone = NUQ().fit(outputs, targets)(features)
    for rank in (0, 1):
        found = NUQ().restore(*torch.load(tmp_path / f"{rank}.pt"))(features)
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-3)


def test_prediction_needs_a_fit_and_more_samples_than_neighbours():
    features, targets = clusters(21)
    assert torch.isfinite(fitted(features, targets)(features)).all()
    with pytest.raises(ValueError, match=r"k is 20 but there are 20 training features.*: lower k"):
        fitted(features[:20], targets[:20])
    with pytest.raises(NotFittedError, match=r"nuq is not fitted to training data yet"):
        NUQ().predict(with_logits(features), None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k is 0; expected a whole number from 1: take 20"),
        ({"k": True}, "k is True; expected a whole number"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"log_weight": -math.inf}, "log_weight is -inf; expected a finite number: take -100"),
        ({"bandwidth": 0}, "bandwidth is 0; expected a finite number above 0: take None"),
        ({"bandwidth": math.nan}, "bandwidth is nan; expected a finite number above 0"),
    ],
)
def test_settings_are_checked_before_training(arguments, message):
    with pytest.raises(ValueError, match=message):
        NUQ(**arguments)
