"""`Method.prepare` on networks that are already prepared or normalised."""

import pytest
import torch
from torch import nn

import daedl
from daedl.methods import FEDL, METHODS, SNGP, NatPN, PostNet, build
from daedl.networks import MLP, FeatureModule
from daedl.spectral import normalization

WITH_HEAD = ["natpn", "postnet", "f-edl", "sngp"]


def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(8,))


@pytest.mark.parametrize("name", METHODS)
def test_preparing_twice_changes_nothing(name):
    method = build(name)
    prepared = method.prepare(network())
    before = {key: value.clone() for key, value in prepared.state_dict().items()}
    state = torch.get_rng_state()
    again = method.prepare(prepared)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(again.state_dict()) == list(before)
    assert all(torch.equal(before[key], value) for key, value in again.state_dict().items())


@pytest.mark.parametrize("name", METHODS)
def test_spectral_normalisation_is_that_of_the_settings_and_excludes_the_head(name):
    method = build(name)
    prepared = method.prepare(network())
    assert normalization(prepared) == method.resolved(network()).spectral
    if name in WITH_HEAD:
        assert normalization(prepared.head) is None


@pytest.mark.parametrize("first", WITH_HEAD)
@pytest.mark.parametrize("second", ["softmax", "daedl", "f-edl", "natpn", "sngp"])
def test_network_prepared_for_another_method_is_rejected(first, second):
    prepared = daedl.Classifier(network(), first).network
    if first == second:
        assert daedl.Classifier(prepared, second).network is prepared
        return
    with pytest.raises(ValueError, match=r"prepared for|spectrally normalised"):
        daedl.Classifier(prepared, second)


@pytest.mark.parametrize(
    ("method", "other"),
    [
        (FEDL(), FEDL(head_width=7)),
        (NatPN(), NatPN(latent=3)),
        (PostNet(), PostNet(depth=2)),
        (SNGP(), SNGP(width=64)),
        (SNGP(), SNGP(latent=64)),
    ],
    ids=lambda method: method.name,
)
def test_head_of_another_size_is_rejected(method, other):
    prepared = daedl.Classifier(network(), method).network
    with pytest.raises(ValueError, match="prepared for"):
        daedl.Classifier(prepared, other)


def test_conflicting_normalisation_is_rejected_before_the_network_changes():
    normalised = daedl.spectral_normalize(network())
    with pytest.raises(ValueError, match="spectrally normalised"):
        daedl.Classifier(normalised, SNGP())
    assert normalised(torch.zeros(2, 4)).logits.shape == (2, 3)


@pytest.mark.parametrize("name", ["natpn", "postnet", "sngp"])
def test_latent_methods_require_a_last_linear_layer(name):
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.MaxPool1d(2))
    with pytest.raises(ValueError, match="no Linear layer with 2 outputs"):
        daedl.Classifier(FeatureModule(layers, "1", (4,)), name)
