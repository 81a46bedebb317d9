"""The default of DAEDL learns from two to 1,000 classes."""

import pytest
import torch
from sklearn.datasets import make_moons

import daedl
from daedl.methods import DAEDL
from daedl.networks import MLP


def accuracy(network, method, inputs, targets, **options):
    """Trains on every second sample, and tests on the others."""
    model = daedl.Classifier(network, method)
    train = inputs[::2], targets[::2]
    daedl.fit(model, train, accelerator="cpu", progress=False, **options)
    return float((model.predict(inputs[1::2]).labels == targets[1::2]).double().mean())


@pytest.mark.slow
def test_two_moons_are_learned_as_well_as_by_softmax():
    """With a norm of 1 on all layers, as published, the network can't bend."""
    points, labels = make_moons(1000, noise=0.1, random_state=0)
    inputs, targets = torch.tensor(points, dtype=torch.float32), torch.tensor(labels)

    def trained(method):
        torch.manual_seed(0)
        return accuracy(MLP(2, num_classes=2), method, inputs, targets, max_epochs=30)

    ours = trained("daedl")
    assert ours >= trained("softmax")
    assert ours > trained(DAEDL.as_published()) + 0.05


@pytest.mark.parametrize(
    ("classes", "epochs", "constant"),
    [(150, 10, 0.5), pytest.param(1000, 4, 0.02, marks=pytest.mark.slow)],
    ids=str,
)
def test_many_classes_are_learned(classes, epochs, constant):
    """With a constant KL weight, few of them are."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.nn.functional.normalize(torch.randn(classes, 32, generator=generator))
    targets = torch.arange(16 * classes) // 2 % classes
    inputs = centers[targets] + 0.05 * torch.randn(len(targets), 32, generator=generator)

    def trained(**settings):
        torch.manual_seed(0)
        network, method = MLP(32, classes, hidden=(64,)), DAEDL(covariance="tied", **settings)
        options = {"max_epochs": epochs, "batch_size": 64, "learning_rate": 1e-2}
        return accuracy(network, method, inputs, targets, **options)

    assert trained() > 0.9
    # The default divides the weight by (C / 10)².
    assert trained(kl_weight=0.05 * (classes / 10) ** 2) < constant
