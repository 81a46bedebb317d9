"""The study of depths, on invented outputs."""

import pytest
import torch

from daedl.networks import WhitenNet
from daedl.outputs import Outputs
from daedl_bench.studies import depths

WIDTHS = {"block1": 4, "block2": 6, "pool": 3}


def outputs(number, shift=0.0, seed=0):
    """Features about the mean of their class, and logits; `shift` moves block1 only."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    features = torch.randn(number, 13, generator=generator) + 4 * torch.eye(3, 13)[labels]
    features[:, :4] += shift
    return Outputs(features, 5 * torch.eye(3)[labels]), labels


def computed():
    return depths.Computed(
        WIDTHS, outputs(300), outputs(90, seed=1), {"fog": outputs(90, shift=9.0, seed=2)[0]}
    )


def test_selected_features_are_those_of_a_network_with_these_blocks():
    blocks = tuple(WIDTHS)
    for pooling in ("mean", "mean-std"):
        torch.manual_seed(0)
        every = WhitenNet(1, 3, 9, (2, 3, 3), features=blocks, pooling="mean-std").eval()
        torch.manual_seed(0)
        some = WhitenNet(1, 3, 9, (2, 3, 3), features=blocks[1:], pooling=pooling).eval()
        images = torch.rand(2, 1, 9, 9)
        found = depths.Computed(dict(zip(blocks, every.parts, strict=True)), (), (), {})
        choice = depths.Choice(blocks[1:], pooling, True, "tied")
        selected, expected = found.select(every(images), choice), some(images)
        torch.testing.assert_close(selected.features, expected.features)
        assert selected.parts == expected.parts


@pytest.mark.parametrize("covariance", ["tied", "block"])
def test_the_block_that_differs_detects_the_corruption(covariance):
    found = computed()
    blocks = [("pool",), ("block1", "pool")]
    choices = [None, *(depths.Choice(b, "mean-std", False, covariance) for b in blocks)]
    figures = [{m.metric: m.value for m in depths.measure(found, each)} for each in choices]
    none, last, both = (each["auroc fog"] for each in figures)
    assert none == pytest.approx(0.5)
    assert last < 0.7
    assert both > 0.95
    assert all(each["accuracy"] == 1 for each in figures)


@pytest.mark.parametrize("network", depths.NETWORKS)
def test_choices_are_different_and_have_rows_of_their_own(network):
    names = list(map(str, depths.NETWORKS[network]))
    assert len(set(names)) == len(names)
    assert any("pool" in name for name in names)
