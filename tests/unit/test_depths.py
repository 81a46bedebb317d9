"""Features of several blocks: pooling, joining, and everything that is built on them."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import daedl
from daedl import export
from daedl.methods import DAEDL
from daedl.networks import Backbone, ConvNet, FeatureHead, FeatureModule, ResNet18, build
from daedl.networks.depths import pool
from daedl.outputs import Outputs

DEPTHS = ("conv1", "conv3", "dense2")


def network(**settings):
    torch.manual_seed(0)
    settings = {"features": DEPTHS, "pooling": "mean-std", **settings}
    return ConvNet(2, 3, image_size=8, channels=4, **settings).eval()


def images(number=90, seed=0):
    """Three classes of noise with a bright corner each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    noise = 0.3 * torch.rand(number, 2, 8, 8, generator=generator)
    for c in range(3):
        noise[labels == c, :, 2 * c : 2 * c + 3] += 0.6
    return noise, labels


def classifier(**settings):
    settings = {"covariance": "block", "normalize_features": True, **settings}
    model = daedl.Classifier(network(), DAEDL(normalizer="half-quantile", **settings))
    return model.fit_post_hoc([images()])


@pytest.mark.parametrize("pooling", ["flatten", "mean", "mean-std"])
def test_pooling_agrees_with_numpy(pooling):
    maps = torch.randn(5, 3, 4, 6, dtype=torch.float64)
    rows = maps.numpy()
    expected = {
        "flatten": rows.reshape(5, -1),
        "mean": rows.mean((2, 3)),
        "mean-std": np.concatenate([rows.mean((2, 3)), rows.std((2, 3))], 1),
    }[pooling]
    np.testing.assert_allclose(pool(maps, pooling).numpy(), expected)
    vectors = maps[:, :, 0, 0]
    assert torch.equal(pool(vectors, pooling), vectors)


def test_pooling_has_finite_gradients_and_is_nonexpansive():
    constant = torch.ones(2, 3, 4, 4, requires_grad=True)
    pool(constant, "mean-std").sum().backward()
    assert torch.isfinite(constant.grad).all()
    first, second = torch.randn(2, 200, 3, 4, 4)
    moved = (pool(first, "mean-std") - pool(second, "mean-std")).norm(dim=1)
    assert (moved <= (first - second).flatten(1).norm(dim=1) / 4 + 1e-6).all()


def test_parts_are_the_pooled_outputs_of_the_blocks_in_one_pass():
    net, (inputs, _) = network(), images(6)
    calls = []
    net.extractor.conv1.register_forward_hook(lambda *_: calls.append(1))
    features, logits, parts = net(inputs)
    assert parts == net.parts == (8, 8, 64)
    assert len(calls) == 1
    single = [network(features=name)(inputs) for name in DEPTHS]
    assert torch.equal(features, torch.cat([each.features for each in single], 1))
    assert all(torch.equal(logits, each.logits) for each in single)
    assert torch.equal(Outputs(features, logits, parts).last_part, single[-1].features)


def test_order_of_the_names_does_not_matter():
    assert network(features=DEPTHS[::-1]).arguments == network().arguments


@pytest.mark.parametrize("features", [(), ("conv1", "conv1"), ("conv1", "conv9"), "logits"])
def test_invalid_blocks_are_rejected(features):
    with pytest.raises(ValueError, match="features"):
        network(features=features)


def test_invalid_pooling_is_rejected_with_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'mean-std'"):
        network(pooling="mean_std")


@pytest.mark.parametrize(
    ("name", "arguments", "last"),
    [
        ("ConvNet", {"in_channels": 1, "num_classes": 3, "image_size": 8}, "flatten"),
        ("VGG16", {"in_channels": 1, "num_classes": 3}, "flatten"),
        ("ResNet18", {"in_channels": 1, "num_classes": 3, "image_size": 8}, "pool"),
        ("WhitenNet", {"in_channels": 1, "num_classes": 3, "image_size": 9}, "pool"),
        ("MLP", {"in_features": 3, "num_classes": 3, "hidden": [4, 4]}, "dense2"),
        ("FeatureHead", {"in_features": 3, "num_classes": 3}, "input"),
        (
            "Backbone",
            {"backbone": "efficientnet-lite0", "num_classes": 3, "image_size": 32},
            "pool",
        ),
    ],
)
def test_last_is_the_papers_choice_with_the_arguments_of_earlier_model_files(name, arguments, last):
    arguments = build(name, **arguments, features="last").arguments
    assert arguments["features"] == last
    assert not {"pooling", "parts"} & set(arguments)


def test_arguments_are_json_and_rebuild_the_network():
    net = network()
    again = build("ConvNet", **json.loads(json.dumps(net.arguments)))
    again.load_state_dict(net.state_dict())
    inputs, _ = images(4)
    assert torch.equal(again.eval()(inputs).features, net(inputs).features)
    assert copy.deepcopy(net).arguments == net.arguments


def test_feature_module_joins_several_submodules_in_the_order_of_the_pass():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.second = nn.Conv2d(6, 4, 3)
            self.first = nn.Conv2d(1, 6, 3)

        def forward(self, x):
            return self.head(self.second(self.first(x).relu()).mean((2, 3)))

    own = Own()
    model = daedl.Classifier.from_module(
        own, ["second", "first"], input_shape=(1, 9, 9), pooling="mean"
    )
    assert model.network.parts == (6, 4)
    inputs = torch.rand(2, 1, 9, 9)
    maps = own.first(inputs)
    expected = torch.cat([maps.mean((2, 3)), own.second(maps.relu()).mean((2, 3))], 1)
    torch.testing.assert_close(model.network(inputs).features, expected)
    names = [name for name, _ in model.network.named_modules_in("features")]
    assert {"module.first", "module.second"} <= set(names)
    with pytest.raises(ValueError, match="'first'"):
        FeatureModule(own, ["firsst", "second"], (1, 9, 9))


@pytest.mark.parametrize("covariance", ["block", "tied", "auto"])
def test_saved_classifier_is_the_same_and_can_be_updated(tmp_path, covariance):
    model = classifier(covariance=covariance)
    assert model.fitted.density.parts == (8, 8, 64)
    model.save(tmp_path / "m.daedl")
    again = daedl.Classifier.load(tmp_path / "m.daedl")
    inputs, _ = images(30, 1)
    assert torch.equal(again.predict(inputs).log_alpha, model.predict(inputs).log_alpha)
    again.update_post_hoc([images(30, 1)])
    assert again.fitted.density.counts.sum() == 120
    assert again.fitted.density.parts == (8, 8, 64)
    assert str(again.density_effect([images(30, 2)]))


@pytest.mark.slow
def test_exported_classifier_agrees_with_pytorch(tmp_path):
    model = classifier()
    inputs, _ = images(7, 1)
    graph = export.to_torch_export(model).module()
    for name, expected in model.predict(inputs).columns().items():
        torch.testing.assert_close(graph(inputs)[name], expected, rtol=1e-4, atol=1e-4)
    pytest.importorskip("onnxruntime")
    # `to_onnx` compares the predictions of both before it writes the file.
    assert export.to_onnx(model, tmp_path / "m.onnx").path.exists()


@pytest.mark.parametrize("method", ["ensemble", "f-edl", "dropout", "ddu", "mahalanobis", "knn"])
def test_other_methods_take_several_depths(method, tmp_path):
    settings = {"size": 2, "member": DAEDL(normalize_features=True)} if method == "ensemble" else {}
    model = daedl.Classifier(network(), method, **settings)
    daedl.fit(model, images(), images(30, 1), max_epochs=1, progress=False)
    model.save(tmp_path / "m.daedl")
    inputs, _ = images(9, 2)
    again = daedl.Classifier.load(tmp_path / "m.daedl")
    assert torch.equal(again.predict(inputs).probs, model.predict(inputs).probs)


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_frozen_backbone_caches_all_depths(tmp_path):
    """The head sees the last block only, the density all of them."""
    torch.manual_seed(0)
    depths = {"features": ("stage3", "pool"), "pooling": "mean-std"}
    settings = {"spectral": None, "covariance": "diagonal"}
    inputs, labels = images()
    data = (torch.nn.functional.interpolate(inputs, 32).repeat(1, 2, 1, 1)[:, :3], labels)
    models = [
        daedl.Classifier(Backbone("efficientnet-lite0", 3, 32, **depths), **settings)
        for _ in range(2)
    ]
    models[1].load_state_dict(models[0].state_dict())
    options = {"max_epochs": 2, "progress": False}
    daedl.fit_frozen(models[0], data, cache=tmp_path, **options)
    daedl.fit(models[1], data, **options)
    fast, slow = (model.predict(data[0][:9]) for model in models)
    torch.testing.assert_close(fast.probs, slow.probs, rtol=1e-3, atol=1e-3)
    assert models[0].fitted.density.parts == (80, 1280)
    default = Backbone("efficientnet-lite0", 3, 32)
    assert default.arguments["features"] == ["stage3", "stage5", "pool"]
    assert default.head().parts == default.parts == (80, 224, 1280)
    with pytest.raises(ValueError, match="last block 'pool'"):
        Backbone("efficientnet-lite0", 3, 32, features="stage3").head()


def test_feature_head_with_parts_is_rebuilt_by_its_arguments():
    head = FeatureHead(7, 3, hidden=(5,), parts=(3, 4))
    assert build("FeatureHead", **head.arguments).parts == head(torch.rand(1, 7)).parts == (3, 4)
    changed = torch.rand(2, 7)
    changed[:, 3:] = changed[:1, 3:]
    assert torch.equal(*head(changed).logits)
    with pytest.raises(ValueError, match="columns in total"):
        FeatureHead(7, 3, parts=(3, 3))


def test_lipschitz_bound_of_joined_features_holds():
    def residual(features):
        torch.manual_seed(0)
        return ResNet18(1, 3, 8, channels=4, features=features, pooling="mean-std").eval()

    net = residual(("stem", "stage2"))
    bound = daedl.lipschitz_bound(net).value
    alone = [daedl.lipschitz_bound(residual(name)).value for name in net.depths]
    assert bound == pytest.approx(math.hypot(*alone))
    first = torch.rand(64, 1, 8, 8)
    second = first + 1e-2 * torch.randn_like(first)
    with torch.no_grad():
        moved = (net(first).features - net(second).features).norm(dim=1)
    assert (moved <= bound * (first - second).flatten(1).norm(dim=1)).all()
