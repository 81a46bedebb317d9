"""Settings that are "auto" get their values from the network when a classifier is built."""

from dataclasses import dataclass

import pytest
import torch

import daedl
from daedl.methods import DAEDL, EDL, Ensemble, Retrofit
from daedl.networks import MLP, Backbone, ConvNet, Network
from daedl.spectral import SpectralNorm, normalization, spectral_normalize

DEFAULT = SpectralNorm(scope="features", coefficient=3.0)
EXPLICIT = {"spectral": SpectralNorm(soft=True), "normalize_features": True}


def vectors() -> MLP:
    return MLP(4, 3, hidden=(8,))


def images() -> ConvNet:
    return ConvNet(1, 3, image_size=8, channels=4)


def pretrained() -> Network:
    pytest.importorskip("efficientnet_lite_pytorch")
    return Backbone("efficientnet-lite0", 3, 32)


@pytest.mark.parametrize(
    ("network", "spectral", "normalize"),
    [(vectors, DEFAULT, False), (images, DEFAULT, True), (pretrained, None, True)],
)
def test_settings_depend_on_the_network(network, spectral, normalize):
    method = daedl.Classifier(network()).method
    assert method == DAEDL(spectral=spectral, normalize_features=normalize)
    assert method.resolved(vectors()) == method
    member = daedl.Classifier(network(), Ensemble(member=DAEDL(), size=2)).method.member
    assert member == method


@pytest.mark.parametrize("network", [vectors, images])
def test_post_hoc_methods_do_not_normalise_weights(network):
    classifier = daedl.Classifier(network(), "retrofit")
    assert classifier.method == Retrofit(normalize_features=network is images)
    assert normalization(classifier.network) is None


@pytest.mark.parametrize("network", [vectors, images])
@pytest.mark.parametrize("method", [DAEDL(**EXPLICIT), DAEDL.as_published(), EDL()], ids=str)
def test_explicit_settings_are_kept(network, method):
    classifier = daedl.Classifier(network(), method)
    assert classifier.method == method
    assert normalization(classifier.network) == method.spectral


def test_only_the_extractor_is_normalised():
    network = daedl.Classifier(vectors()).network
    assert normalization(network.classifier) is None
    weight = network.extractor[0][0].weight.detach()
    assert float(torch.linalg.matrix_norm(weight, 2)) == pytest.approx(3, rel=1e-4)


@dataclass(frozen=True, kw_only=True)
class Own(DAEDL):
    name = "own"


def test_networks_that_are_already_normalised_keep_their_settings(tmp_path):
    """Also when the file of a user-defined method is loaded with "auto" settings."""
    present = SpectralNorm(coefficient=2.0)
    classifier = daedl.Classifier(spectral_normalize(vectors(), present), Own())
    assert classifier.method.spectral == normalization(classifier.network) == present
    classifier.save(tmp_path / "m.daedl")
    again = daedl.Classifier.load(tmp_path / "m.daedl", method=Own())
    assert again.method == classifier.method
    assert normalization(again.network) == present
