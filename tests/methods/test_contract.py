"""The contract holds what later methods need: noise batches, several passes, own heads, post hoc fits.

Each method here is a small stand-in of its kind, written only against the contract.
"""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import daedl
from daedl import losses
from daedl.dirichlet import Dirichlet
from daedl.methods import EDLPlus, Method, Softmax
from daedl.networks import MLP, Network
from daedl.outputs import Outputs
from daedl.prediction import Prediction

fit = partial(daedl.fit, accelerator="cpu", progress=False, learning_rate=1e-2)


@dataclass(frozen=True, kw_only=True)
class NoisePrior(EDLPlus):
    """Prior networks: a batch of noise beside each training batch, through the network in one pass."""

    name = "noise-prior"

    def training_loss(self, network, images, targets, epoch):
        noise = 10 * torch.rand_like(images)
        logits = network(torch.cat([images, noise])).logits
        inside, outside = logits.chunk(2)
        known = losses.evidential(inside, targets, 0.05, "mean")
        return known + Dirichlet(outside).kl_to_uniform().mean()


@dataclass(frozen=True, kw_only=True)
class ManyPasses(Softmax):
    """MC dropout: dropout kept on at prediction, probabilities averaged."""

    name = "many-passes"
    passes: int = 5

    def forward(self, network, images):
        for module in network.modules():
            module.train(isinstance(module, nn.Dropout))
        probs = torch.stack([network(images).logits.softmax(-1) for _ in range(self.passes)])
        return Outputs(probs.var(0), probs.mean(0).log())

    def predict(self, outputs, fitted):
        return Prediction.from_probs(outputs.logits.exp(), epistemic=outputs.features.sum(-1))


class LatentHead(Network):
    """The network, with the logits replaced by log densities of a trainable latent Gaussian a class."""

    def __init__(self, network):
        nn.Module.__init__(self)
        self.inner = network
        self.latent = nn.Linear(network.num_features, 2)
        self.means = nn.Parameter(torch.randn(network.num_classes, 2))
        self.input_shape, self.num_classes = network.input_shape, network.num_classes
        self.num_features, self.arguments = 2, network.arguments

    def forward(self, images):
        latent = self.latent(self.inner(images).features)
        return Outputs(latent, -0.5 * torch.cdist(latent, self.means).square() + 5)


@dataclass(frozen=True, kw_only=True)
class LatentDensity(Method):
    """PostNet and NatPN: a head with parameters of its own, trained with the rest."""

    name = "latent-density"

    def prepare(self, network):
        return network if isinstance(network, LatentHead) else LatentHead(network)

    def loss(self, outputs, targets, epoch):
        return losses.expected_mse(F.softplus(outputs.logits), targets, "none")

    def predict(self, outputs, fitted):
        return Prediction.from_dirichlet(F.softplus(outputs.logits))


class Temperature(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.register_buffer("value", value)

    def settings(self):
        return {}


@dataclass(frozen=True, kw_only=True)
class Tempered(Softmax):
    """Post hoc methods: something fitted to the outputs after training."""

    name = "tempered"

    def fit(self, outputs, targets):
        candidates = torch.linspace(0.5, 3, 26)
        losses = [F.cross_entropy(outputs.logits / t, targets) for t in candidates]
        return Temperature(candidates[int(torch.stack(losses).argmin())])

    def predict(self, outputs, fitted):
        return Prediction.from_probs((outputs.logits / fitted.value).softmax(-1))


def own_dropout():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
    return daedl.networks.Wrapped(layers, features="1", input_shape=(4,))


@pytest.mark.parametrize(
    "method", [NoisePrior(), LatentDensity(), Tempered()], ids=lambda m: m.name
)
def test_kinds_of_methods_train_and_predict(method, blobs):
    torch.manual_seed(0)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(32,)), method)
    history = fit(classifier, blobs, blobs, max_epochs=15)
    assert history.epochs[-1].val_loss < history.epochs[0].val_loss
    p = classifier.predict(blobs[0])
    assert daedl.metrics.accuracy(p.labels, blobs[1]) > 0.7
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(610))


def test_several_passes_at_prediction(blobs):
    classifier = daedl.Classifier(own_dropout(), ManyPasses())
    fit(classifier, blobs, blobs, max_epochs=10)
    p = classifier.predict(blobs[0])
    assert daedl.metrics.accuracy(p.labels, blobs[1]) > 0.7
    assert (p.epistemic > 0).any()


def test_noise_lowers_the_evidence_there(blobs):
    torch.manual_seed(0)
    plain, noisy = (
        daedl.Classifier(MLP(4, 3, hidden=(32,)), method) for method in (EDLPlus(), NoisePrior())
    )
    for classifier in (plain, noisy):
        fit(classifier, blobs, max_epochs=15)
    noise = 10 * torch.rand(200, 4)
    assert noisy.predict(noise).epistemic.mean() > plain.predict(noise).epistemic.mean()
