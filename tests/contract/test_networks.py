"""Networks of `NETWORKS` and wrapped modules: features, logits, errors."""

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
    "Backbone": {"backbone": "efficientnet-lite0", "num_classes": 3, "image_size": 32},
    "FeatureHead": {"in_features": 5, "num_classes": 3},
    "MLP": {"in_features": 5, "num_classes": 3},
    "ConvNet": {"in_channels": 2, "num_classes": 3, "image_size": 8, "channels": 4},
    "VGG16": {"in_channels": 2, "num_classes": 3},
    "ResNet18": {"in_channels": 2, "num_classes": 3, "image_size": 8, "channels": 4},
    "WhitenNet": {"in_channels": 2, "num_classes": 3, "image_size": 9},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_features_and_logits_of_one_pass(name):
    network = build(name, **SMALL[name]).eval()
    images = torch.rand(4, *network.input_shape)
    features, logits, _ = network(images)
    assert features.shape == (4, network.num_features)
    assert logits.shape == (4, 3)
    torch.testing.assert_close(network.classifier(network.extractor(images)), logits)


@pytest.mark.parametrize("name", NETWORKS)
def test_arguments_rebuild_the_network(name):
    network = build(name, **SMALL[name])
    again = build(name, **network.arguments)
    assert again.arguments == network.arguments
    again.load_state_dict(network.state_dict())


def test_layers_have_the_published_shapes():
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
def test_feature_block_is_an_argument(features, width):
    torch.manual_seed(0)
    network = ConvNet(**SMALL["ConvNet"], features=features)
    assert network.num_features == width
    torch.manual_seed(0)
    reference = ConvNet(**SMALL["ConvNet"])
    images = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(network(images).logits, reference(images).logits)


def test_unknown_names_are_rejected_with_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'ConvNet'"):
        build("Convnet")
    with pytest.raises(ValueError, match="did you mean 'dense1'"):
        MLP(2, 2, hidden=(4, 4), features="densee1")


def test_images_that_are_too_small_are_rejected():
    with pytest.raises(ValueError, match="at least 8"):
        ConvNet(1, 10, image_size=4)
    with pytest.raises(ValueError, match="at least 32"):
        VGG16(3, 10, image_size=16)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("size", [0, -1, 2.5, "8", None, True])
def test_invalid_sizes_are_rejected(name, size):
    for argument in SMALL[name]:
        with pytest.raises(ValueError, match=rf"{argument} is {size!r}"):
            build(name, **{**SMALL[name], argument: size})


@pytest.mark.parametrize("size", [1200, 10**9])
def test_inputs_are_bounded_also_where_weights_do_not_depend_on_them(size):
    for arguments in (
        {"name": "ResNet18", "in_channels": 3},
        {"name": "Backbone", "backbone": "efficientnet-lite0"},
    ):
        with pytest.raises(ValueError, match="values"):
            build(**arguments, num_classes=3, image_size=size)


@pytest.mark.parametrize("hidden", [(8, 0), (2.5,), "64", ("a",)])
def test_invalid_hidden_widths_are_rejected(hidden):
    for name in ("MLP", "ConvNet"):
        with pytest.raises(ValueError, match="hidden"):
            build(name, **SMALL[name], hidden=hidden)


def test_mlp_without_hidden_layers_is_rejected():
    with pytest.raises(ValueError, match="hidden is empty"):
        MLP(2, 2, hidden=())


class Own(nn.Module):
    """A user's module."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def test_feature_module_returns_the_output_of_a_named_submodule():
    own = Own()
    network = FeatureModule(own, features="body", input_shape=(1, 9, 9))
    assert (network.num_features, network.num_classes) == (24, 4)
    images = torch.rand(3, 1, 9, 9)
    features, logits, _ = network(images)
    torch.testing.assert_close(features, own.body(images).flatten(1))
    torch.testing.assert_close(logits, own(images))
    assert not own.body._forward_hooks
    names = [name for name, _ in network.named_modules_in("features")]
    assert "module.body.0" in names
    assert "module.head" not in names


def test_feature_module_is_thread_safe():
    network = FeatureModule(Own().eval(), features="body", input_shape=(1, 9, 9))
    images = [torch.full((2, 1, 9, 9), float(i)) for i in range(8)]
    with torch.no_grad():
        expected = [network(x).features for x in images]
    features = [[] for _ in images]

    def work(i):
        with torch.no_grad():
            for _ in range(20):
                features[i].append(network(images[i]).features)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own, value in zip(features, expected, strict=True):
        assert len(own) == 20
        assert all(torch.equal(each, value) for each in own)


def test_unsuitable_modules_are_rejected():
    with pytest.raises(ValueError, match="did you mean 'body'"):
        FeatureModule(Own(), features="bodi", input_shape=(1, 9, 9))
    with pytest.raises(ValueError, match="expected logits"):
        FeatureModule(Own().body, features="0", input_shape=(1, 9, 9))

    class Lazy(Own):
        def forward(self, x):
            return self.head(x.flatten(1)[:, :24])

    with pytest.raises(ValueError, match="returned 0 tensors"):
        FeatureModule(Lazy(), features="body", input_shape=(1, 9, 9))

    class Pair(Own):
        def forward(self, x):
            return x, super().forward(x)

    with pytest.raises(ValueError, match="expected logits"):
        FeatureModule(Pair(), features="body", input_shape=(1, 9, 9))


def test_in_place_layers_do_not_change_the_features():
    layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    images = torch.randn(5, 4)
    features = FeatureModule(layers, features="0", input_shape=(4,))(images).features
    torch.testing.assert_close(features, layers[0](images))
    assert (features < 0).any()


def test_pooling_before_relu_has_the_same_values_and_gradients():
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


@pytest.mark.parametrize("name", ["Backbone", "ConvNet", "VGG16", "ResNet18"])
def test_channels_last_has_the_same_outputs(name):
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
