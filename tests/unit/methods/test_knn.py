"""Distances to the k-th nearest neighbour against scikit-learn."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors

from daedl.methods import Softmax
from daedl.methods import knn as module
from daedl.methods.knn import NearestNeighbours
from daedl.outputs import Outputs


def with_logits(features):
    generator = torch.Generator().manual_seed(1)
    return Outputs(features, torch.randn(len(features), 3, generator=generator).to(features))


def scores(features, queries, **settings):
    method = NearestNeighbours(**settings)
    fitted = method.fit(with_logits(features), torch.zeros(len(features)).long())
    return method.predict(with_logits(queries), fitted).epistemic


def random(count, width=20, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=generator).relu().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 7, 50])
def test_against_scikit_learn(k, dtype):
    stored, queries = random(500, dtype=dtype), random(90, seed=1, dtype=dtype)
    reference = NearestNeighbors(n_neighbors=k, algorithm="brute")
    reference.fit(F.normalize(stored.double()))
    expected = torch.tensor(reference.kneighbors(F.normalize(queries.double()))[0][:, -1])
    computed = scores(stored, queries, k=k)
    assert computed.dtype == dtype
    torch.testing.assert_close(computed, expected.to(dtype), rtol=1e-5, atol=1e-6)


def test_worked_numbers():
    """Directions at 0°, 60° and 90° of any length; a query at 0°: chords 0, 1, √2."""
    stored = torch.tensor([[5.0, 0.0], [1.0, 3**0.5], [0.0, 0.1]])
    query = torch.tensor([[1e-3, 0.0]])
    computed = [scores(stored, query, k=k).item() for k in (1, 2, 3)]
    assert computed == pytest.approx([0, 1, 2**0.5], abs=1e-6)


def test_small_distances_are_accurate():
    """In float32, 2 − 2 cos of an angle of 1e-4 has no correct digit."""
    stored = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    query = torch.tensor([[1.0, 1e-4]])
    assert scores(stored, query, k=1).item() == pytest.approx(1e-4, rel=1e-3)
    assert (scores(random(300), random(300), k=1) == 0).all()


def test_scores_are_invariant_to_length_and_defined_for_zero_features():
    stored, queries = random(200), random(30, seed=1)
    computed = scores(stored, queries, k=5)
    torch.testing.assert_close(
        scores(1000 * stored, queries / 7, k=5), computed, rtol=1e-5, atol=1e-6
    )
    # A zero feature is at distance 1 from unit vectors, and at distance 0 from other zeros.
    nothing = torch.zeros(1, 20)
    assert scores(stored, nothing, k=5).item() == pytest.approx(1)
    assert scores(torch.cat([stored, nothing]), nothing, k=1).item() == 0
    assert torch.isfinite(scores(1e30 * stored, 1e-30 * queries, k=5)).all()


def test_block_size_does_not_change_scores(monkeypatch):
    stored, queries = random(300), random(101, seed=1)
    whole = scores(stored, queries, k=3)
    monkeypatch.setattr(module, "_ELEMENTS", 2000)  # six rows at a time
    torch.testing.assert_close(scores(stored, queries, k=3), whole, rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(module, "_ELEMENTS", 1)
    torch.testing.assert_close(scores(stored, queries, k=3), whole, rtol=1e-6, atol=1e-6)


def test_a_random_subset_is_stored():
    stored = random(400)
    outputs, targets = with_logits(stored), torch.zeros(400).long()

    def kept(**settings):
        return NearestNeighbours(k=5, **settings).fit(outputs, targets).stored

    part = kept(samples=60)
    assert part.shape == (60, 20)
    assert len(part.unique(dim=0)) == 60
    assert (torch.cdist(part, F.normalize(stored)).amin(1) < 1e-3).all()
    assert torch.equal(part, kept(samples=60))
    assert not torch.equal(part, kept(samples=60, seed=1))
    assert not torch.equal(part, kept()[:60])  # random, not the first ones
    assert torch.equal(kept(samples=1000).sort(0).values, kept().sort(0).values)
    state = torch.get_rng_state()
    kept(samples=60)
    assert torch.equal(torch.get_rng_state(), state)


def test_probabilities_equal_softmax():
    outputs = with_logits(random(100))
    method = NearestNeighbours()
    p = method.predict(outputs, method.fit(outputs, torch.zeros(100).long()))
    assert torch.equal(p.probs, Softmax().predict(outputs, None).probs)


def test_more_neighbours_than_samples_are_rejected():
    with pytest.raises(ValueError, match="k is 50 but there are 20"):
        scores(random(20), random(1))
    assert torch.isfinite(scores(random(20), random(1, seed=1), k=20)).all()


def test_samples_below_k_are_rejected():
    with pytest.raises(ValueError, match="samples is 9"):
        NearestNeighbours(k=10, samples=9)
