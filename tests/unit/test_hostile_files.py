"""Model files with a valid digest and an invalid description; large ones: daedl_bench.robustness.tiny."""

import copy

import pytest
import safetensors.torch
import torch
from torch import nn

import daedl
from daedl import storage
from daedl.networks import MLP, ConvNet, FeatureModule
from daedl_bench.robustness.tiny import changed, saved


@pytest.mark.parametrize(
    ("method", "keys", "value"),
    [
        ("daedl", "network", None),
        ("daedl", "network.name", 7),
        ("daedl", "network.arguments.hidden", [2.5]),
        ("daedl", "network.arguments.hidden", [[[8]]]),
        ("daedl", "network.arguments.in_features", 10**400),
        ("daedl", "method", []),
        ("daedl", "method.arguments", [1]),
        ("daedl", "method.arguments.kl_weight", "much"),
        ("daedl", "dtype", "float33"),
        ("daedl", "dtype", "nn"),
        ("daedl", "class_names", [1, 2, 3]),
        ("daedl", "preprocess", "default"),
        ("daedl", "revisions", [{"samples": "many"}]),
        ("daedl", "trained_on", {"samples": 3}),
        ("daedl", "spectral", {"coefficient": "x"}),
        ("daedl", "thresholds", []),
        ("daedl", "thresholds.limits", {}),
        ("daedl", "thresholds.limits", {"epistemic": float("nan")}),
        ("daedl", "thresholds.limits", {"epistemic": "1"}),
        ("daedl", "thresholds.limits", {"colour": 1.0}),
        ("daedl", "thresholds.samples", -3),
        ("daedl", "thresholds.coverage", 2.0),
        ("daedl", "thresholds.target.rate", "x"),
        ("softmax", "thresholds.limits", {"density": 1.0}),
        ("daedl", "fitted", {}),
        ("daedl", "fitted.dtype", "int8"),
        ("daedl", "fitted.covariance", "round"),
        ("daedl", "fitted.parts", [3, 3]),
        ("daedl", "fitted.reference", "half"),
        ("daedl", "fitted.temperature", 0),
        ("daedl", "fitted.normalizer.low", "a"),
        ("temperature", "fitted.temperature", -1.0),
        ("knn", "fitted.k", 0),
        ("knn", "fitted.k", 1.5),
        ("nuq", "fitted.bandwidth", "wide"),
        ("ensemble", "fitted", {"parts": []}),
    ],
)
def test_invalid_descriptions_are_rejected(tmp_path, method, keys, value):
    path = tmp_path / "model.daedl"
    tensors, description = saved(path, method)
    storage.save(path, tensors, changed(description, keys, value))
    with pytest.raises(ValueError, match=r"can't be rebuilt|64 bits"):
        daedl.Classifier.load(path)


@pytest.mark.parametrize("name", ["fitted.density.means", "network.classifier.logits.bias"])
@pytest.mark.parametrize("change", [lambda t: t[..., :2], lambda t: t.long(), None])
def test_tensors_that_differ_from_the_description_are_rejected(tmp_path, name, change):
    path = tmp_path / "model.daedl"
    tensors, description = saved(path)
    value = tensors.pop(name)
    if change is not None:
        tensors[name] = change(value)
    storage.save(path, tensors, description)
    with pytest.raises(ValueError, match="can't be rebuilt"):
        daedl.Classifier.load(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 2, "network": %s}' % ("[" * 100_000 + "]" * 100_000),
        '{"format": 2, "network": %s}' % ("[" * 900 + "]" * 900),
        f'{{"format": 2, "network": {10**400}}}',
        f'{{"format": 2, "network": {"9" * 5000}}}',
        '{"format": "new"}',
        "[2]",
        "2",
    ],
)
def test_unusual_json_is_rejected(tmp_path, text):
    path = tmp_path / "model.daedl"
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(1)}, {"daedl": text}))
    with pytest.raises(ValueError, match="damaged"):
        daedl.Classifier.load(path)


def test_a_training_record_that_can_not_be_read_is_not_saved(tmp_path):
    model = daedl.Classifier(MLP(4, 3))
    model.trained_on = {"samples": "many"}
    with pytest.raises(ValueError, match="trained_on"):
        model.save(tmp_path / "model.daedl")


@pytest.mark.parametrize(
    ("method", "keys", "value"),
    [
        ("daer", "scaling", None),
        ("daer", "scaling.targets", {"mean": [], "std": []}),
        ("daer", "scaling.targets", {"mean": [0.0], "std": [1.0]}),
        ("daer", "scaling.features", {"mean": [0.0], "std": [1.0]}),
        *(
            ("daer", f"scaling.{columns}", {"mean": [0.0, mean, 0.0, 0.0][:number], "std": std})
            for columns, number in (("features", 4), ("targets", 3))
            for mean, std in (
                (float("nan"), [1.0] * number),
                (1e308, [1.0] * number),
                (0.0, [1.0, 1.0, 1e308, 1.0][:number]),
                (0.0, [5e-324, 1.0, 1.0, 1.0][:number]),
            )
        ),
        ("daer", "thresholds.conformal.residuals", [[1e308]] * 3),
        ("daedl", "fitted.normalizer.level", 2),
        ("daedl", "fitted.normalizer.level", 3),
        ("daedl", "fitted.normalizer.high", float("inf")),
        ("daedl", "fitted.reference", float("nan")),
        ("daedl", "spectral.coefficient", 1e300),
        ("daedl", "scaling", {"targets": {"mean": [0.0], "std": [1.0]}}),
    ],
)
def test_settings_with_which_predictions_fail_or_mislead_are_rejected(
    tmp_path, method, keys, value
):
    path = tmp_path / "model.daedl"
    tensors, description = saved(path, method)
    storage.save(path, tensors, changed(description, keys, value))
    with pytest.raises(ValueError, match="can't be rebuilt"):
        daedl.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("mean", [value]) for value in (float("nan"), 1e308)),
        *(("std", [value]) for value in (float("nan"), 5e-324, 0.0)),
        *(("scale", value) for value in (float("nan"), 5e-324, 1e308, True, "x")),
    ],
)
def test_preprocessing_that_overflows_is_rejected(tmp_path, key, value):
    path = tmp_path / "model.daedl"
    tensors, description = saved(path, "softmax", ConvNet)
    storage.save(path, tensors, changed(description, f"preprocess.{key}", value))
    with pytest.raises(ValueError, match=rf"can't be rebuilt.*{key}"):
        daedl.load(path)


@pytest.mark.parametrize(
    "name", ["network.classifier.logits.bias", "fitted.density.means", "fitted.density.scatter"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tensors_that_are_not_finite_are_rejected(tmp_path, name, value):
    path = tmp_path / "model.daedl"
    tensors, description = saved(path)
    tensors[name].view(-1)[0] = value
    storage.save(path, tensors, description)
    with pytest.raises(ValueError, match="NaN or infinite"):
        daedl.load(path)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = daedl.Classifier(MLP(4, 3), "softmax")
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite"):
        model.save(tmp_path / "model.daedl")


def test_buffers_of_other_modules_may_be_infinite(tmp_path):
    path, module = tmp_path / "model.daedl", nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module.register_buffer("mask", torch.full((2,), float("-inf")))
    network = FeatureModule(module, "0", (4,))
    daedl.Classifier(network, "softmax").save(path)
    assert (
        daedl.Classifier.load(path, network=copy.deepcopy(network))
        .network.module.mask.isinf()
        .all()
    )
