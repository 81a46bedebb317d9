"""What the contract asks of networks that another method prepared, and of processes."""

import pytest
import torch

import daedl
from daedl.methods import (
    FEDL,
    METHODS,
    SNGP,
    NatPN,
    PostNet,
)
from daedl.networks import MLP


def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(8,))


@pytest.mark.parametrize("first", ["natpn", "postnet", "f-edl", "sngp"])
@pytest.mark.parametrize("second", ["softmax", "daedl", "f-edl", "natpn", "sngp"])
def test_a_network_prepared_for_another_method_is_refused(first, second):
    prepared = daedl.Classifier(network(), first).network
    if first == second:
        assert daedl.Classifier(prepared, second).network is prepared
        return
    with pytest.raises(ValueError, match=r"build the network anew|spectrally normalised"):
        daedl.Classifier(prepared, second)


def test_heads_of_other_sizes_are_refused():
    for method, other in (
        (FEDL(), FEDL(head_width=7)),
        (NatPN(), NatPN(latent=3)),
        (PostNet(), PostNet(depth=2)),
        (SNGP(), SNGP(width=64)),
    ):
        prepared = daedl.Classifier(network(), method).network
        with pytest.raises(ValueError, match="build the network anew"):
            daedl.Classifier(prepared, other)


def test_a_wrong_normalisation_is_found_out_before_anything_is_replaced():
    normalised = daedl.spectral_normalize(network())
    with pytest.raises(ValueError, match="spectrally normalised"):
        daedl.Classifier(normalised, SNGP())
    assert normalised(torch.zeros(2, 4)).logits.shape == (2, 3)


def test_every_class_tells_what_its_table_needs():
    for name, kind in METHODS.items():
        assert kind.paper, name
        assert kind.caveats, name
