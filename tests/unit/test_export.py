"""Exported graphs agree with PyTorch, for every method, in onnxruntime and torch.export."""

import copy
import json
import math
import os
import runpy
import sys
import warnings
from functools import cache
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import daedl
from daedl import export, methods
from daedl import selective as thresholds
from daedl.cli import app
from daedl.cli import export as command
from daedl.export import files, onnx_file
from daedl.networks import MLP, ConvNet, FeatureModule
from daedl.spectral import normalization
from daedl_bench import datasets as data

SETTINGS = {
    "adats": {"epochs": 1},
    "ensemble": {"member": "daedl", "size": 2},
    "knn": {"k": 5},
    "natpn": {"latent": 4, "depth": 2},
    "nuq": {"k": 5},
    "postnet": {"latent": 4, "depth": 2},
    "sngp": {"width": 32, "latent": 8},
}
RANDOM = {"dropout"}
DIRICHLET = {"epistemic", "log_alpha", "alpha0"}
DENSITY = {"density_score", "log_density"}
# Outputs besides probs, label, aleatoric and accept; by default an epistemic score.
MORE = {
    **dict.fromkeys(("daedl", "retrofit"), DIRICHLET | DENSITY),
    **dict.fromkeys(("edl", "edl+", "i-edl", "r-edl", "re-edl", "kl-pn", "rkl-pn"), DIRICHLET),
    **{name: DIRICHLET | {"log_density"} for name in ("postnet", "natpn", "dip-edl")},
    "ddu": {"epistemic", "log_density"},
    **{name: set() for name in ("softmax", "logitnorm", "temperature", "adats")},
}


def code(name):
    """Returns the functions that determine a method's graph; one method is tested for each combination."""
    parts = ("prepare", "forward", "fit", "predict", "log_alpha", "score")
    return tuple(getattr(methods.METHODS[name], part, None) for part in parts)


NAMES = [name for name in reversed(methods.METHODS) if name not in RANDOM]
EXPORTED = list({code(name): name for name in NAMES}.values())


def known(number=240, seed=0):
    """Vectors (number, 4) of three clusters, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(number) % 3
    noise = 0.3 * torch.randn(number, 4, generator=generator)
    return 2 * torch.eye(4)[targets] + noise, targets


def mixed(number=300):
    """In-distribution vectors and noise, half each."""
    generator = torch.Generator().manual_seed(1)
    noise = 3 * torch.randn(number // 2, 4, generator=generator)
    return torch.cat([known(number - number // 2, seed=2)[0], noise])


def fitted(model, images, targets):
    """Returns `model` fitted and calibrated without training, which the graph does not need."""
    model.method.set_class_counts(model.network, torch.bincount(targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", daedl.DensityWarning)
        model.fit_post_hoc([(images, targets)])
    model.calibrate([(images, targets)], daedl.MaxRejectionRate(0.2))
    return model.eval()


@cache
def classifier(name, **settings):
    torch.manual_seed(0)
    network = MLP(4, 3, hidden=(8, 3))
    method = methods.build(name, **SETTINGS.get(name, {}) | settings)
    return fitted(daedl.Classifier(network, method, ["cat", "dog", "owl"]), *known())


@cache
def small_images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return pixels, torch.arange(60) % 3


def convnet(**settings):
    torch.manual_seed(0)
    network = ConvNet(1, 3, image_size=8, channels=4, hidden=(8,))
    return fitted(daedl.Classifier(network, "daedl", **settings), *small_images())


def run(path, images):
    """Runs an ONNX file in onnxruntime; returns the outputs by name."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    computed = session.run(names, {"images": images.numpy()})
    return dict(zip(names, map(torch.from_numpy, computed), strict=True))


def assert_same(model, images, computed, tolerance=1e-4):
    """Compares names, order, types, shapes and values of all outputs."""
    expected = model.predict(images).columns()
    assert list(computed) == list(expected)
    for name, tensor in expected.items():
        assert computed[name].dtype == tensor.dtype, name
        assert computed[name].shape == tensor.shape, name
        torch.testing.assert_close(computed[name], tensor, rtol=tolerance, atol=tolerance)


def operators(path):
    return {(node.domain, node.op_type) for node in onnx.load(path).graph.node}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="module", params=EXPORTED)
def exported(request, folder):
    """A classifier of each method, its ONNX file and the summary."""
    model, path = classifier(request.param), folder / request.param / "model.onnx"
    path.parent.mkdir()
    return model, path, export.to_onnx(model, path)


@pytest.mark.slow
class TestEveryMethod:
    def test_onnx_agrees_with_pytorch_for_every_batch_size(self, exported):
        model, path, _ = exported
        for number in (1, 7, 300):
            assert_same(model, mixed(number), run(path, mixed(number)))

    def test_operators_are_in_the_default_domain(self, exported):
        _, path, _ = exported
        assert not onnx.load(path).functions
        assert [(each.domain, each.version) for each in onnx.load(path).opset_import] == [("", 18)]
        for domain, name in operators(path):
            assert domain == ""
            assert onnx.defs.has(name, 18, "")

    def test_outputs_of_the_method(self, exported):
        model, _, summary = exported
        common = {"probs", "label", "aleatoric", "accept"}
        assert set(summary.outputs) == common | MORE.get(model.method.name, {"epistemic"})
        assert summary.outputs["probs"] == "float32 (batch, 3)"
        assert summary.inputs == {"images": "float32 (batch, 4)"}
        assert summary.difference <= 1e-4

    def test_images_with_nan_are_not_accepted(self, exported):
        _, path, _ = exported
        broken = known(3)[0]
        broken[1] = torch.nan
        computed = run(path, broken)
        assert computed["probs"].isnan().any(1).tolist() == [False, True, False]
        assert not computed["accept"][1]

    def test_metadata_describes_the_model_without_local_paths(self, exported):
        model, path, summary = exported
        described = json.loads(
            {each.key: each.value for each in onnx.load(path).metadata_props}["daedl"]
        )
        assert described["class_names"] == ["cat", "dog", "owl"]
        assert described["method"]["name"] == model.method.name
        assert thresholds.Thresholds.restore(described["thresholds"]) == model.thresholds
        assert described["input"]["shape"] == ["batch", 4]
        assert described["version"] == daedl.__version__
        assert len(path.read_bytes()) == summary.size
        assert str(Path(daedl.__file__).parent).encode() not in path.read_bytes()
        assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["daedl", "ensemble", "natpn"])
def test_torch_export_agrees_with_pytorch_more_closely(name):
    """The ONNX file of every method is made from the same graph."""
    model = classifier(name)
    graph = export.to_torch_export(model).module()
    for number in (1, 7, 300):
        assert_same(model, mixed(number), graph(mixed(number)), tolerance=1e-6)


class TestDaedl:
    @pytest.mark.slow
    def test_diagonal_covariance_smooth_normalizer_and_float64(self, tmp_path):
        torch.manual_seed(0)
        method = methods.DAEDL(covariance="diagonal", normalizer="smooth-quantile")
        model = daedl.Classifier(MLP(4, 3, hidden=(8,)).double(), method)
        images, targets = known()
        fitted(model, images.double(), targets)
        summary = export.to_onnx(model, tmp_path / "m.onnx")
        assert summary.inputs == {"images": "float64 (batch, 4)"}
        computed = run(tmp_path / "m.onnx", mixed().double())
        assert_same(model, mixed().double(), computed, tolerance=1e-6)

    @pytest.mark.slow
    def test_float64_densities_stay_float64(self, tmp_path):
        model = copy.deepcopy(classifier("daedl", covariance="full"))
        model.fitted.density = model.fitted.density.cast(torch.float64)
        export.to_onnx(model, tmp_path / "m.onnx")
        stored = onnx.load(tmp_path / "m.onnx").graph.initializer
        matrices = [each.data_type for each in stored if len(each.dims) == 2]
        assert matrices.count(onnx.TensorProto.DOUBLE) == 1  # the factors of the density
        assert_same(model, mixed(), run(tmp_path / "m.onnx", mixed()), tolerance=1e-5)

    @pytest.mark.slow
    def test_spectral_normalisation_is_removed_from_the_graph_only(self, tmp_path):
        """The classifier keeps its parametrisation and its training mode."""
        model = convnet(spectral=daedl.SpectralNorm(norm="operator")).train()
        before, settings = model.predict(small_images()[0]).probs, normalization(model.network)
        export.to_onnx(model, tmp_path / "m.onnx")
        assert_same(model, small_images()[0], run(tmp_path / "m.onnx", small_images()[0]))
        assert normalization(model.network) == settings
        assert model.training
        assert model.network.training
        assert torch.equal(model.predict(small_images()[0]).probs, before)
        kept = export.to_torch_export(model).state_dict
        assert not [name for name in kept if "parametrizations" in name]

    def test_uncalibrated_models_have_no_accept_output(self):
        model = convnet()
        model.thresholds = None
        computed = export.to_torch_export(model).module()(small_images()[0])
        assert "accept" not in computed
        assert_same(model, small_images()[0], computed)


@pytest.mark.slow
@pytest.mark.parametrize("target", [daedl.MaxRejectionRate(0.1), daedl.MaxErrorRate(0.1)], ids=repr)
def test_ties_at_a_limit_are_decided_as_in_pytorch(target, tmp_path):
    """Without evidence all scores are equal, but onnxruntime sums in another order and rounds differently."""
    torch.manual_seed(0)
    model = daedl.Classifier(MLP(4, 12, hidden=(8,)), "edl", activation="relu")
    model.network.classifier.logits.bias.data.fill_(-1000)
    (limit,) = model.predict(mixed()).aleatoric.double().unique().tolist()
    below = isinstance(target, daedl.MaxErrorRate)
    limits = {"aleatoric": math.nextafter(limit, -math.inf) if below else limit}
    model.thresholds = thresholds.Thresholds(limits, target, 300, 1.0, 0.0)
    export.to_onnx(model, tmp_path / "m.onnx")
    accepted = run(tmp_path / "m.onnx", mixed())["accept"]
    assert torch.equal(accepted, model.predict(mixed()).accept)
    assert accepted.unique().tolist() == [not below]


@pytest.mark.slow
def test_evidence_beyond_the_range_of_float32(tmp_path):
    """The exponentials of the logits overflow in float32."""
    torch.manual_seed(0)
    model = daedl.Classifier(MLP(4, 3, hidden=(8, 3)), "f-edl", spectral=None, head_width=4)
    model.network.plain.classifier.logits.weight.data *= 1000
    assert model.network(mixed()).logits.max() > 100
    export.to_onnx(model, tmp_path / "m.onnx")
    assert_same(model, mixed(), run(tmp_path / "m.onnx", mixed()))


@pytest.mark.slow
class TestTorchExportFiles:
    def test_saved_and_loaded(self, tmp_path):
        model = convnet()
        summary = export.to_pt2(model, tmp_path / "m.pt2")
        extra = {"daedl.json": ""}
        graph = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
        assert_same(model, small_images()[0], graph(small_images()[0]))
        assert json.loads(extra["daedl.json"]) == json.loads(json.dumps(export.description(model)))
        assert summary.opset is None
        assert summary.size == (tmp_path / "m.pt2").stat().st_size
        assert str(Path(daedl.__file__).parent).encode() not in (tmp_path / "m.pt2").read_bytes()

    def test_unused_tensors_are_removed(self):
        """The scatter matrices are larger than everything needed for prediction."""
        program = export.to_torch_export(convnet())
        names = {*program.state_dict, *program.constants}
        assert "fitted.density.scatter" not in names
        assert "fitted.density.distances.product0" in names


def test_custom_network():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model = fitted(daedl.Classifier(FeatureModule(module, "2", (4,)), "daedl"), *known())
    assert_same(model, mixed(), export.to_torch_export(model).module()(mixed()))


class TestDifference:
    def test_absolute_up_to_one_and_relative_above(self):
        a, b = torch.tensor([0.1, 1000.0]), torch.tensor([0.2, 1001.0])
        assert export.max_difference({"a": a[:1]}, {"a": b[:1]}) == pytest.approx(0.1)
        assert export.max_difference({"a": a[1:]}, {"a": b[1:]}) == pytest.approx(0.001)
        assert export.max_difference({"a": a}, {"a": a}) == 0

    def test_decisions_infinities_and_nan(self):
        yes, no = torch.tensor([True]), torch.tensor([False])
        assert export.max_difference({"accept": yes}, {"accept": no}) == 1
        infinite, broken = torch.tensor([math.inf]), torch.tensor([math.nan])
        assert export.max_difference({"a": infinite}, {"a": infinite}) == 0
        assert math.isnan(export.max_difference({"a": infinite * 0 + 1}, {"a": broken}))


class Branching(nn.Module):
    """Branches on values in Python."""

    def __init__(self):
        super().__init__()
        self.features, self.logits = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.features(x)
        return self.logits(x if x.sum() > 0 else -x)


class Special(Branching):
    """Uses a function without ONNX operator."""

    def forward(self, x):
        return self.logits(torch.special.zeta(2.0, 1 + self.features(x).square()))


class TestErrors:
    def test_unfitted_density(self, tmp_path):
        model = daedl.Classifier(MLP(4, 3), "daedl")
        with pytest.raises(daedl.NotFittedError, match="fitted"):
            export.to_onnx(model, tmp_path / "m.onnx")

    @pytest.mark.parametrize("name", ["dropout", "ensemble"])
    def test_random_forward_passes(self, name):
        settings = {"member": "dropout"} if name == "ensemble" else {}
        model = daedl.Classifier(MLP(4, 3), name, **settings)
        with pytest.raises(ValueError, match=rf"'{name}'.*random"):
            export.to_torch_export(model)

    def test_untraceable_network(self, tmp_path, capfd):
        model = daedl.Classifier(FeatureModule(Branching(), "features", (4,)), "softmax")
        with pytest.raises(ValueError, match="can't be traced"):
            export.to_pt2(model, tmp_path / "m.pt2")
        assert capfd.readouterr() == ("", "")

    @pytest.mark.slow
    def test_function_without_onnx_operator(self, tmp_path, capfd):
        model = daedl.Classifier(FeatureModule(Special(), "features", (4,)), "softmax")
        with pytest.raises(ValueError, match=r"zeta.*\.pt2"):
            export.to_onnx(model, tmp_path / "m.onnx")
        assert capfd.readouterr() == ("", "")
        export.to_pt2(model, tmp_path / "m.pt2")
        assert [each.name for each in tmp_path.iterdir()] == ["m.pt2"]

    @pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
    def test_missing_package(self, package, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=rf"^{package} .*daedl\[export\]"):
            export.to_onnx(classifier("edl"), tmp_path / "m.onnx")

    def test_size_limit(self, tmp_path, monkeypatch):
        monkeypatch.setattr(onnx_file, "LARGEST", 100)
        with pytest.raises(ValueError, match=r"GB.*\.pt2"):
            export.to_onnx(classifier("edl"), tmp_path / "m.onnx")

    def test_missing_folder(self, tmp_path):
        with pytest.raises(OSError, match="cannot write"):
            export.to_pt2(classifier("edl"), tmp_path / "missing" / "m.pt2")


@pytest.mark.parametrize("module", [files, onnx_file, command])
def test_optional_packages_are_imported_when_needed(module, monkeypatch):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, package, None)
    runpy.run_path(module.__file__)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.daedl"
    classifier("edl").save(path)
    return path


def call(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def error_line(*arguments):
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


class TestCommand:
    @pytest.mark.slow
    def test_onnx(self, model_file, tmp_path):
        out = tmp_path / "m.onnx"
        result = call(model_file, out)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        assert f"{out}: ONNX, opset 18, 0.0" in result.stdout
        assert "  in   images     float32 (batch, 4)\n" in result.stdout
        assert "  out  log_alpha  float32 (batch, 3)\n" in result.stdout
        assert "largest difference to PyTorch on 16 random images: " in result.stdout
        assert_same(classifier("edl"), mixed(), run(out, mixed()))
        export.to_onnx(classifier("edl"), tmp_path / "again.onnx")
        assert out.read_bytes() == (tmp_path / "again.onnx").read_bytes()

    def test_torch_export(self, model_file, tmp_path):
        result = call(model_file, tmp_path / "m.pt2")
        assert result.exit_code == 0, result.output
        assert "torch.export" in result.stdout
        graph = torch.export.load(tmp_path / "m.pt2").module()
        assert_same(classifier("edl"), mixed(), graph(mixed()))

    @pytest.mark.parametrize("name", ["m", "m.pt", "m.onnx.bak"])
    def test_unknown_suffix(self, name, model_file, tmp_path):
        assert "expected .onnx or .pt2" in error_line(model_file, tmp_path / name)

    def test_existing_files_are_overwritten_only_with_force(self, model_file, tmp_path):
        out = tmp_path / "m.pt2"
        out.write_text("content")
        assert "--force" in error_line(model_file, out)
        assert out.read_text() == "content"
        assert call(model_file, out, "--force").exit_code == 0
        assert out.stat().st_size > 1000

    @pytest.mark.slow
    def test_inaccurate_graphs_are_not_written(self, model_file, tmp_path):
        out = tmp_path / "m.onnx"
        out.write_text("content")
        message = error_line(model_file, out, "--force", "--tolerance", 1e-12)
        assert "differs from PyTorch by" in message
        assert "at most 1e-12" in message
        assert [each.read_text() for each in tmp_path.iterdir()] == ["content"]

    def test_missing_folder(self, model_file, tmp_path):
        assert "cannot write" in error_line(model_file, tmp_path / "missing" / "m.pt2")

    def test_missing_model(self, tmp_path):
        assert "no model file" in error_line(tmp_path / "m.daedl", tmp_path / "m.onnx")

    def test_missing_package(self, model_file, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        assert "daedl[export]" in error_line(model_file, tmp_path / "m.onnx")


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("DAEDL_DATA"), reason="DAEDL_DATA is not set")
def test_mnist_images(tmp_path):
    """Outputs for 1000 test images agree within 1e-4, and so do the decisions."""
    if not data.present("mnist", "train") or not data.present("mnist", "test"):
        pytest.skip("mnist is not available")
    train, test = (data.load("mnist", split, download=False) for split in ("train", "test"))
    images, labels = train.images[:900], train.labels[:900]
    torch.manual_seed(0)
    model = daedl.Classifier(ConvNet(1, 10, channels=16), "daedl", leave_one_out=True)
    parts = (images[:600], labels[:600]), (images[600:], labels[600:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", daedl.DensityWarning)
        daedl.fit(model, *parts, max_epochs=3, accelerator="cpu", progress=False)
    model.calibrate([parts[1]])
    export.to_onnx(model, tmp_path / "m.onnx")
    real = test.images[:1000]
    computed = run(tmp_path / "m.onnx", real)
    assert_same(model, real, computed)
    assert 0 < computed["accept"].double().mean() < 1
