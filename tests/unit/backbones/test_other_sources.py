"""Adapters of timm and transformers, against modules with the interface of these packages."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import daedl
from daedl import backbones


class Tiny(nn.Module):
    """A convolutional network that returns pooled features, as timm's models with num_classes=0."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, stride=4)
        self.norm = nn.BatchNorm2d(5)
        self.pretrained_cfg = {"fixed_input_size": True}

    def forward(self, images):
        return self.norm(self.conv(images)).mean((2, 3))


@pytest.fixture
def timm(monkeypatch):
    package, data = ModuleType("timm"), ModuleType("timm.data")

    def create_model(name, pretrained, num_classes):
        assert num_classes == 0
        torch.manual_seed(1 if pretrained else 2)
        return Tiny()

    package.list_models = lambda: ["tiny_net", "vast_net"]
    package.create_model = create_model
    data.resolve_model_data_config = lambda model: {
        "input_size": (3, 24, 24),
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.2, 0.3),
    }
    package.data = data
    monkeypatch.setitem(sys.modules, "timm", package)
    monkeypatch.setitem(sys.modules, "timm.data", data)


class Transformer(nn.Module):
    """Returns a last hidden state (B, T, H), as transformers' vision models."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.patches = nn.Conv2d(3, config.hidden_size, 8, stride=8)

    def forward(self, pixel_values):
        state = self.patches(pixel_values).flatten(2).transpose(1, 2)
        return SimpleNamespace(last_hidden_state=state, pooler_output=None)


class Config(SimpleNamespace):
    def to_json_string(self, use_diff):
        assert not use_diff
        return json.dumps(vars(self))


@pytest.fixture
def transformers(monkeypatch):
    package = ModuleType("transformers")

    class AutoModel:
        @staticmethod
        def from_config(config, **settings):
            assert settings["trust_remote_code"] is False
            return Transformer(config)

        @staticmethod
        def from_pretrained(name, local_files_only):
            assert local_files_only
            if "missing" in name:
                raise OSError("no such model")
            torch.manual_seed(1)
            return Transformer(Config(model_type="own", hidden_size=7))

    class AutoConfig:
        @staticmethod
        def for_model(model_type, **settings):
            return Config(model_type=model_type, **settings)

    class AutoImageProcessor:
        @staticmethod
        def from_pretrained(name, local_files_only):
            assert local_files_only
            return SimpleNamespace(
                size={"shortest_edge": 16},
                image_mean=[0.5] * 3,
                image_std=[0.25] * 3,
                rescale_factor=1 / 255,
            )

    package.AutoModel, package.AutoConfig = AutoModel, AutoConfig
    package.CONFIG_MAPPING = {"own": SimpleNamespace(sub_configs={})}
    package.AutoImageProcessor = AutoImageProcessor
    monkeypatch.setitem(sys.modules, "transformers", package)


def check(model, path):
    """The model predicts the same after it was saved and loaded."""
    images = torch.randint(256, (4, *model.network.input_shape), dtype=torch.uint8)
    model.eval()
    model.save(path)
    again = daedl.Classifier.load(path)
    assert torch.equal(again.predict(images).probs, model.predict(images).probs)
    assert again.preprocess == model.preprocess


def test_timm_model_with_its_preprocessing(timm, tmp_path):
    model = daedl.Classifier.from_backbone("timm:tiny_net", 3, method="edl")
    assert model.preprocess == daedl.Preprocess(
        3, (24, 24), "crop", mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3)
    )
    torch.manual_seed(1)
    assert torch.equal(model.network.extractor.body.conv.weight, Tiny().conv.weight)
    check(model, tmp_path / "m.daedl")


def test_timm_names_and_sizes_are_checked(timm):
    with pytest.raises(ValueError, match="did you mean 'tiny_net'"):
        backbones.pretrained("timm:tiny_nett")
    with pytest.raises(ValueError, match="only 24"):
        backbones.pretrained("timm:tiny_net", 32)


def test_transformers_model_with_its_preprocessing(transformers, tmp_path):
    folder = tmp_path / "vit"
    folder.mkdir()
    model = daedl.Classifier.from_backbone(f"hf:{folder}", 3, method="edl")
    assert model.network.input_shape == (3, 16, 16)
    assert model.network.num_features == 7
    assert model.network.arguments["backbone"] == "hf:vit"
    check(model, tmp_path / "m.daedl")


def test_unknown_transformers_folder_suggests_a_similar_one(transformers, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "missing-vit").mkdir()
    with pytest.raises(ValueError, match="did you mean 'missing-vit'"):
        backbones.pretrained(f"hf:{tmp_path / 'missing-vitt'}")


@pytest.mark.parametrize("name", ["/nope/folder", "./nope", "a/b/c"])
def test_a_path_is_not_looked_up_on_the_hub(transformers, name):
    with pytest.raises(ValueError, match="no folder at"):
        backbones.pretrained(f"hf:{name}")


@pytest.mark.parametrize(
    ("name", "package"), [("timm:resnet18", "timm"), ("hf:x/y", "transformers")]
)
def test_missing_package_is_named_with_the_command(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install {package}"):
        backbones.pretrained(name)
