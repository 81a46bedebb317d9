"""Networks: features and logits together, where they are cut, and users' own modules."""

import threading

import pytest
import torch
from torch import nn

from daedl.networks import (
    MLP,
    NETWORKS,
    VGG16,
    ConvNet,
    FeatureModule,
    ResNet18,
    build,
    lay_out,
)

SMALL = {
    "MLP": {"in_features": 5, "num_classes": 3},
    "ConvNet": {"in_channels": 2, "num_classes": 3, "image_size": 8, "channels": 4},
    "VGG16": {"in_channels": 2, "num_classes": 3},
    "ResNet18": {"in_channels": 2, "num_classes": 3, "image_size": 8, "channels": 4},
    "WhitenNet": {"in_channels": 2, "num_classes": 3, "image_size": 9},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_features_and_logits_from_one_pass(name):
    network = build(name, **SMALL[name]).eval()
    images = torch.rand(4, *network.input_shape)
    features, logits = network(images)
    assert features.shape == (4, network.num_features)
    assert logits.shape == (4, 3)
    torch.testing.assert_close(network.classifier(network.extractor(images)), logits)


@pytest.mark.parametrize("name", NETWORKS)
def test_arguments_rebuild_the_network(name):
    network = build(name, **SMALL[name])
    again = build(name, **network.arguments)
    assert again.arguments == network.arguments
    again.load_state_dict(network.state_dict())


def test_published_shapes():
    assert ConvNet(1, 10).num_features == 576
    assert VGG16(3, 10).num_features == 512
    assert ResNet18(3, 10).num_features == 512
    convnet = ConvNet(1, 10)
    sizes = [tuple(layer.weight.shape) for layer in convnet.modules() if hasattr(layer, "weight")]
    kernels, dense = sizes[:3], sizes[3:]
    assert kernels == [(64, 1, 5, 5), (64, 64, 5, 5), (64, 64, 5, 5)]
    assert dense == [(64, 576), (64, 64), (64, 64), (10, 64)]
    convolutions = [m for m in VGG16(3, 10).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 13
    assert float(convolutions[5].weight.detach().std()) == pytest.approx(
        (2 / (9 * 256)) ** 0.5, rel=0.02
    )
    dropouts = [m.p for m in VGG16(3, 10).modules() if isinstance(m, nn.Dropout)]
    assert dropouts == [0.5, 0.5]


@pytest.mark.parametrize(
    ("features", "width"), [("conv2", 4 * 2 * 2), ("flatten", 4), ("dense1", 64), ("dense3", 64)]
)
def test_where_the_features_end_is_an_argument(features, width):
    torch.manual_seed(0)
    network = ConvNet(**SMALL["ConvNet"], features=features)
    assert network.num_features == width
    torch.manual_seed(0)
    reference = ConvNet(**SMALL["ConvNet"])
    images = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(network(images).logits, reference(images).logits)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown network 'Convnet'.*did you mean 'ConvNet'"):
        build("Convnet")
    with pytest.raises(ValueError, match=r"unknown block.*did you mean 'dense1'"):
        MLP(2, 2, hidden=(4, 4), features="densee1")
    with pytest.raises(ValueError, match="at least 8"):
        ConvNet(1, 10, image_size=4)
    with pytest.raises(ValueError, match="at least 32"):
        VGG16(3, 10, image_size=16)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("size", [0, -1, 2.5, "8", None, True])
def test_sizes_that_make_no_network_are_refused(name, size):
    for argument in SMALL[name]:
        with pytest.raises(ValueError, match=rf"{argument} is {size!r}; expected a whole number"):
            build(name, **{**SMALL[name], argument: size})


@pytest.mark.parametrize("hidden", [(8, 0), (2.5,), "64", ("a",)])
def test_widths_that_make_no_layer_are_refused(hidden):
    for name in ("MLP", "ConvNet"):
        with pytest.raises(ValueError, match=r"a width of hidden is .*; expected a whole number"):
            build(name, **SMALL[name], hidden=hidden)


class Own(nn.Module):
    """A user's module, with its layers in an order of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def test_a_users_module_is_wrapped_by_the_name_of_its_features():
    own = Own()
    network = FeatureModule(own, features="body", input_shape=(1, 9, 9))
    assert (network.num_features, network.num_classes) == (24, 4)
    images = torch.rand(3, 1, 9, 9)
    features, logits = network(images)
    torch.testing.assert_close(features, own.body(images).flatten(1))
    torch.testing.assert_close(logits, own(images))
    assert not own.body._forward_hooks
    names = [name for name, _ in network.parts("features")]
    assert "module.body.0" in names
    assert "module.head" not in names


def test_threads_do_not_see_each_others_features():
    network = FeatureModule(Own().eval(), features="body", input_shape=(1, 9, 9))
    images = [torch.full((2, 1, 9, 9), float(i)) for i in range(8)]
    with torch.no_grad():
        expected = [network(x).features for x in images]
    found = [None] * 8

    def work(i):
        with torch.no_grad():
            for _ in range(20):
                found[i] = network(images[i]).features
                assert torch.equal(found[i], expected[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_bad_wrappings_are_named():
    with pytest.raises(ValueError, match=r"unknown module.*did you mean 'body'"):
        FeatureModule(Own(), features="bodi", input_shape=(1, 9, 9))
    with pytest.raises(ValueError, match="expected logits"):
        FeatureModule(Own().body, features="0", input_shape=(1, 9, 9))

    class Lazy(Own):
        def forward(self, x):
            return self.head(x.flatten(1)[:, :24])

    with pytest.raises(ValueError, match="gave 0 tensors during the forward pass"):
        FeatureModule(Lazy(), features="body", input_shape=(1, 9, 9))

    class Pair(Own):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(ValueError, match=r"gives tuple; expected logits \(batch, classes\)"):
        FeatureModule(Pair(), features="body", input_shape=(1, 9, 9))
    with pytest.raises(ValueError, match="hidden is empty"):
        MLP(2, 2, hidden=())


def test_layers_that_work_in_place_do_not_change_the_features():
    layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    images = torch.randn(5, 4)
    features = FeatureModule(layers, features="0", input_shape=(4,))(images).features
    torch.testing.assert_close(features, layers[0](images))
    assert (features < 0).any()


def test_pooling_first_is_the_same_as_relu_first_in_values_and_gradients():
    torch.manual_seed(0)
    ours, papers = ConvNet(1, 10), ConvNet(1, 10)
    papers.load_state_dict(ours.state_dict())
    for module in papers.modules():
        if isinstance(module, torch.nn.Sequential) and isinstance(module[1], torch.nn.MaxPool2d):
            module[1], module[2] = module[2], module[1]
    images = torch.rand(8, 1, 28, 28)
    for network in (ours, papers):
        network(images).logits.square().sum().backward()
    assert torch.equal(ours(images).logits, papers(images).logits)
    for mine, theirs in zip(ours.parameters(), papers.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("name", ["ConvNet", "VGG16", "ResNet18"])
def test_channels_last_give_the_same_outputs(name):
    network = build(name, **SMALL[name]).eval()
    images = torch.rand(2, *network.input_shape)
    with torch.no_grad():
        before = network(images)
        lay_out(network)
        after = network(images)
    kernels = [each for each in network.parameters() if each.ndim == 4]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in kernels)
    torch.testing.assert_close(after.features, before.features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after.logits, before.logits, rtol=1e-4, atol=1e-5)
