"""Monte Carlo dropout: worked numbers, placement of dropout, reproducible passes."""

import copy

import pytest
import torch
from torch import nn

import daedl
from daedl.methods import MCDropout
from daedl.networks import (
    MLP,
    VGG16,
    ConvNet,
    FeatureModule,
    ResNet18,
)
from daedl.outputs import Outputs


def dropouts(network):
    return [module.p for module in network.modules() if isinstance(module, nn.Dropout)]


def test_worked_numbers_of_two_passes():
    logits = torch.tensor([[[2.0, 0, -1], [1, 1, 0]]], dtype=torch.float64)
    p = MCDropout().predict(Outputs(torch.zeros(1, 2), logits), None)
    assert p.probs[0].tolist() == pytest.approx([0.633057, 0.268257, 0.0986862], abs=5e-7)
    entropy = -(p.probs * p.probs.log()).sum()
    assert float(entropy) == pytest.approx(0.870944, abs=5e-7)
    assert float(p.epistemic) == pytest.approx(0.100132, abs=5e-7)


def test_small_mutual_information_is_not_rounded_to_zero():
    """In float32, where 1 - 1e-10 is 1."""
    sure = torch.tensor([[25.0, 0, 0]])
    passes = torch.stack([sure, sure], 1), torch.stack([sure, torch.tensor([[20.0, 0, 0]])], 1)
    same, other = (MCDropout().predict(Outputs(torch.zeros(1, 1), z), None) for z in passes)
    assert same.epistemic.item() == 0
    assert 0 < other.epistemic.item() < 1e-8


@pytest.mark.parametrize(
    ("network", "number"),
    [
        (MLP(4, 3, hidden=(8, 8)), 2),
        (ConvNet(1, 10, channels=4), 6),
        (ResNet18(1, 3, image_size=8, channels=2), 17),
    ],
    ids=["MLP", "ConvNet", "ResNet18"],
)
def test_dropout_is_added_after_every_activation(network, number):
    names = set(network.state_dict())
    classifier = daedl.Classifier(network, MCDropout(rate=0.3))
    assert dropouts(classifier.network) == [0.3] * number
    assert set(classifier.network.state_dict()) == names
    again = daedl.Classifier(classifier.network, MCDropout(rate=0.3))
    assert len(dropouts(again.network)) == number


def test_existing_dropout_is_kept():
    assert dropouts(daedl.Classifier(VGG16(3, 2), MCDropout()).network) == [0.5, 0.5]


def test_dropout_of_rate_zero_does_not_count():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))
    classifier = daedl.Classifier(FeatureModule(inner, "1", (4,)), MCDropout(rate=0.3))
    assert dropouts(classifier.network) == [0.3, 0.0]
    assert classifier.predict(torch.randn(20, 4)).epistemic.min() > 0


def test_network_without_activations_is_rejected():
    network = FeatureModule(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), "0", (4,))
    with pytest.raises(ValueError, match="neither a Dropout nor an activation"):
        daedl.Classifier(network, MCDropout())


def test_passes_differ_by_dropout_only_and_depend_on_the_seed():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    classifier = daedl.Classifier(FeatureModule(inner, "2", (4,)), MCDropout(num_passes=7)).train()
    images = torch.randn(11, 4)
    before = copy.deepcopy(classifier.state_dict())
    outputs, _ = classifier.collect([(images, torch.zeros(11).long())])
    assert outputs.logits.shape == (11, 7, 3)
    assert outputs.features.shape == (11, 32)
    assert outputs.logits.std(1).min() > 0
    again, _ = classifier.collect([(images, torch.zeros(11).long())])
    assert torch.equal(outputs.logits, again.logits)
    other = daedl.Classifier(classifier.network, MCDropout(num_passes=7, seed=1))
    assert not torch.equal(
        other.collect([(images, torch.zeros(11).long())])[0].logits, outputs.logits
    )
    # Batch statistics are neither used nor updated.
    assert all(torch.equal(before[name], value) for name, value in classifier.state_dict().items())
    assert all(module.training for module in classifier.network.modules())


def test_passes_are_counted():
    assert MCDropout(num_passes=7).passes == 7


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.Dropout, (4,)),
        (nn.AlphaDropout, (4,)),
        (nn.Dropout1d, (4, 5)),
        (nn.Dropout2d, (4, 5, 5)),
        (nn.Dropout3d, (4, 5, 5, 5)),
    ],
)
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_masks_equal_those_of_torch(kind, shape, rate):
    inputs = torch.randn(6, *shape)
    torch.manual_seed(5)
    expected = torch.stack([kind(rate)(inputs).flatten(1) for _ in range(2)], 1)
    layer = nn.Sequential(kind(rate), nn.Flatten(), nn.Identity())
    network = FeatureModule(nn.Sequential(layer, nn.LazyLinear(3)), "0", shape)
    model = daedl.Classifier(network, MCDropout(num_passes=2, seed=5)).eval()
    outputs = model.method.forward(model.network, inputs)
    torch.testing.assert_close(outputs.features, expected.mean(1))
