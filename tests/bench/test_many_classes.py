"""The study of many classes, on small problems."""

import pytest
import torch

from daedl_bench.spec import catalogue
from daedl_bench.studies import many_classes
from daedl_bench.studies._clusters import Clusters
from daedl_bench.summary import Results


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"CLASSES": 8, "WIDTH": 24, "CHUNK": 400, "HELD_OUT": 300}.items():
        monkeypatch.setattr(many_classes, name, value)
    monkeypatch.setattr(many_classes, "SMALL", (8, 24, 60))


def test_samples_have_the_covariance_of_their_class():
    clusters = Clusters.drawn(2, 6, seed=1)
    features, targets = clusters.sample(40_000, seed=2)
    for c in range(2):
        group = features[targets == c]
        expected = clusters.scales.square().diag()
        expected = expected + clusters.factors.T @ clusters.factors
        expected = expected + clusters.own[c].T @ clusters.own[c]
        torch.testing.assert_close(group.T.cov(), expected, rtol=0, atol=0.05 * expected.max())
        torch.testing.assert_close(group.mean(0), clusters.means[c], rtol=0, atol=0.2)


def test_unknown_clusters_share_the_covariance_but_no_mean():
    known, unknown = Clusters.drawn(3, 6, seed=1), Clusters.drawn(3, 6, seed=2)
    assert torch.equal(known.factors, unknown.factors)
    assert not torch.isclose(known.means, unknown.means).any()


def test_the_pass_is_measured_in_chunks_beside_gram_matrices():
    stream, scorer, limits = many_classes.fit(many_classes.EVERY * 400)
    assert stream.statistics["tied-low-rank"].counts.sum() == many_classes.EVERY * 400
    assert scorer.density.structure == "tied-low-rank"
    assert all(each.value > 0 for each in limits if each.unit in ("times", "s"))
    size, density, _ = many_classes.model_file(scorer)
    assert 0 < density.value < size.value
    assert [row.method for row in many_classes.large_problem(stream)] == [
        *2 * ["tied"],
        *2 * ["tied-low-rank"],
    ]


def test_the_table_has_a_line_per_covariance():
    rows = [
        row for seed in (0, 1) for row in many_classes.small_problem(seed, (20.0,), "some data")
    ]
    head, _, *lines = many_classes.table(Results(catalogue(), tuple(rows))).splitlines()
    assert "AUROC" in head
    assert {line.split(" | ")[1] for line in lines} == {"tied", "diagonal", "tied-low-rank"}
    assert all(line.split(" | ")[2] == "2" for line in lines)
