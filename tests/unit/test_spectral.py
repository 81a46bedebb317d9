"""Spectral normalisation: norms against dense matrices, training, copies, removal."""

import copy
import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from daedl.networks import (
    MLP,
    ConvNet,
    FeatureModule,
    Network,
    ResNet18,
    lay_out,
)
from daedl.spectral import SpectralNorm, normalization, remove_spectral_norm, spectral_normalize
from daedl.spectral.maps import KernelMatrix, convolution, top_singular

NORMS = ("kernel", "operator")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def small(**arguments: Any) -> ConvNet:
    return ConvNet(1, 3, **{"image_size": 12, "channels": 8, "hidden": (8,)} | arguments)


def layers(network: nn.Module) -> dict[str, nn.Module]:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return {n: m for n, m in network.named_modules() if isinstance(m, kinds)}


def kernel_norm(weight: Tensor) -> float:
    return float(np.linalg.svd(weight.detach().double().flatten(1).numpy(), compute_uv=False)[0])


def dense(layer: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """Matrix of a convolution from its action on basis vectors; the bias cancels."""
    count = math.prod(shape)
    basis = torch.eye(count, dtype=torch.float64).view(count, *shape)
    layer = copy.deepcopy(layer).double().eval()
    with torch.no_grad():
        columns = layer(basis) - layer(torch.zeros_like(basis[:1]))
    return columns.flatten(1).T.numpy()


def operator_norm(layer: nn.Module, shape: tuple[int, ...]) -> float:
    return float(np.linalg.svd(dense(layer, shape), compute_uv=False)[0])


GEOMETRIES = [
    {"kernel_size": k, "stride": s, "padding": p, "dilation": d, "groups": g}
    for k, s, p, d, g in itertools.product((1, 3, (2, 3)), (1, 2, (3, 1)), (0, 1), (1, 2), (1, 2))
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_operator_norm_and_adjoint_match_the_dense_matrix(geometry: dict[str, Any]) -> None:
    layer = nn.Conv2d(2, 4, **geometry)
    shape = (2, 8, 7)
    linear = convolution(layer, shape[1:])
    computed = top_singular(linear, layer.weight)
    matrix = dense(layer, shape)
    expected = np.linalg.svd(matrix, compute_uv=False)[0]
    assert computed.sigma == pytest.approx(expected, rel=1e-6)
    assert computed.upper >= expected * (1 - 1e-12)
    u = torch.randn_like(computed.u)
    adjoint = linear.adjoint(layer.weight.detach().double(), u)
    assert adjoint.shape == (1, *shape)
    np.testing.assert_allclose(adjoint.flatten(), matrix.T @ u.flatten().numpy(), atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("padding", ["same", "valid", 2])
@pytest.mark.parametrize("kernel", [4, 3])
def test_operator_norm_in_one_dimension_and_with_named_padding(
    padding: int | str, kernel: int
) -> None:
    layer = nn.Conv1d(3, 5, kernel, padding=padding)
    computed = top_singular(convolution(layer, (11,)), layer.weight)
    assert computed.sigma == pytest.approx(operator_norm(layer, (3, 11)), rel=1e-6)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_kernel_norm_matches_the_svd(rows: int, columns: int, seed: int) -> None:
    weight = torch.randn(rows, columns, 1, 2, generator=torch.Generator().manual_seed(seed))
    computed = top_singular(KernelMatrix(), weight)
    assert computed.sigma == pytest.approx(kernel_norm(weight), rel=1e-6)
    assert float(computed.u.norm()) == pytest.approx(1)
    assert float(computed.v.norm()) == pytest.approx(1)


def test_a_constant_kernel_has_reshaped_norm_1_but_operator_norm_4_89() -> None:
    layer = nn.Conv2d(1, 1, 5, padding=2)
    nn.init.constant_(layer.weight, 1 / 5)
    assert top_singular(KernelMatrix(), layer.weight).sigma == pytest.approx(1)
    assert top_singular(convolution(layer, (28, 28)), layer.weight).sigma == pytest.approx(
        4.89, abs=5e-3
    )


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_norm_is_converged_initially(mode: bool, dtype: torch.dtype) -> None:
    network = spectral_normalize(small().to(dtype).train(mode))
    for layer in layers(network).values():
        assert layer.weight.dtype == dtype
        assert kernel_norm(layer.weight) == pytest.approx(1, rel=1e-5)


def test_operator_norm_is_converged_initially() -> None:
    network = spectral_normalize(small(), SpectralNorm(norm="operator")).eval()
    shapes = {"conv1": (1, 12, 12), "conv2": (8, 6, 6), "conv3": (8, 3, 3)}
    for name, shape in shapes.items():
        layer = network.extractor.get_submodule(f"{name}.0")
        assert operator_norm(layer, shape) == pytest.approx(1, rel=1e-5)
    assert kernel_norm(network.classifier.logits.weight) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("coefficient", [0.5, 3])
def test_hard_normalisation_sets_the_norm_to_the_coefficient(coefficient: float) -> None:
    network = spectral_normalize(small(), SpectralNorm(coefficient=coefficient))
    for layer in layers(network).values():
        assert kernel_norm(layer.weight) == pytest.approx(coefficient, rel=1e-5)


def test_soft_normalisation_limits_the_norm_to_the_coefficient() -> None:
    network = MLP(4, 2, hidden=(5,))
    first, last = layers(network).values()
    with torch.no_grad():
        first.weight.mul_(2 / kernel_norm(first.weight))
        last.weight.mul_(5 / kernel_norm(last.weight))
    before = first.weight.clone()
    spectral_normalize(network, SpectralNorm(coefficient=3, soft=True))
    assert torch.equal(first.weight, before)
    assert kernel_norm(last.weight) == pytest.approx(3, rel=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_forward_in_eval_mode_changes_no_buffer(norm: Any) -> None:
    network = spectral_normalize(small(), SpectralNorm(norm=norm)).eval()
    images = torch.randn(2, 1, 12, 12)
    state = copy.deepcopy(network.state_dict())
    first = network(images)
    for _ in range(50):
        again = network(images)
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.logits, again.logits)
    assert all(torch.equal(state[name], tensor) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("norm", NORMS)
def test_forward_in_training_mode_tracks_a_changed_weight(norm: Any) -> None:
    network = spectral_normalize(small(), SpectralNorm(norm=norm, iterations=5)).train()
    layer = network.extractor.conv2[0]
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(torch.randn(8, 8, 5, 5))
    for _ in range(100):
        network(torch.randn(1, 1, 12, 12))
    network.eval()
    reached = kernel_norm(layer.weight) if norm == "kernel" else operator_norm(layer, (8, 6, 6))
    assert reached == pytest.approx(1, rel=1e-3)


def test_assigned_weight_is_normalised() -> None:
    network = spectral_normalize(MLP(4, 2)).eval()
    layer = network.classifier.logits
    layer.weight = 7 * torch.randn_like(layer.weight)
    assert kernel_norm(layer.weight) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_two_forwards_then_backward_and_a_step(norm: Any) -> None:
    network = spectral_normalize(small(), SpectralNorm(norm=norm)).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    original = network.extractor.conv1[0].parametrizations.weight.original
    before = original.detach().clone()
    for _ in range(3):
        images = torch.randn(4, 1, 12, 12)
        loss = network(images).logits.square().sum() - network(-images).logits.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not torch.equal(original, before)
    assert all(torch.isfinite(parameter).all() for parameter in network.parameters())


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_gradient_of_the_normalised_weight(norm: Any, soft: bool) -> None:
    settings = SpectralNorm(norm=norm, soft=soft, coefficient=0.3)
    network = spectral_normalize(small(channels=2).double(), settings).eval()
    for layer in (network.extractor.conv2[0], network.classifier.logits):
        scaling = layer.parametrizations.weight
        weight = scaling.original.detach().clone().requires_grad_()
        assert torch.autograd.gradcheck(scaling[0], (weight,))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("soft", [False, True])
def test_zero_weight_stays_zero_and_is_trainable(norm: Any, soft: bool) -> None:
    network = small()
    nn.init.zeros_(network.extractor.conv1[0].weight)
    nn.init.zeros_(network.classifier.logits.weight)
    spectral_normalize(network, SpectralNorm(norm=norm, soft=soft)).train()
    network(torch.randn(2, 1, 12, 12)).logits.sum().backward()
    for layer in layers(network).values():
        assert torch.isfinite(layer.weight).all()
        assert torch.isfinite(layer.parametrizations.weight.original.grad).all()
    logits = network.classifier.logits
    with torch.no_grad():
        logits.parametrizations.weight.original.normal_()
    for _ in range(30):
        network(torch.randn(2, 1, 12, 12))
    if not soft:
        assert kernel_norm(logits.weight) == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("norm", NORMS)
def test_deep_copies_are_independent(norm: Any) -> None:
    network = spectral_normalize(small(), SpectralNorm(norm=norm)).eval()
    images = torch.randn(2, 1, 12, 12)
    expected = network(images).logits
    copied = copy.deepcopy(network)
    assert torch.equal(copied(images).logits, expected)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.normal_()
    copied.train()(images)
    remove_spectral_norm(copied)
    assert normalization(network) is not None
    assert torch.equal(network(images).logits, expected)


@pytest.mark.parametrize("norm", NORMS)
def test_state_dict_round_trip(norm: Any) -> None:
    settings = SpectralNorm(norm=norm)
    network = spectral_normalize(small(), settings).train()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.randn(2, 1, 12, 12)
    network(images)
    again = spectral_normalize(small(), settings)
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.eval()(images).logits, network.eval()(images).logits)


def test_norm_is_kept_by_dtype_conversion() -> None:
    network = spectral_normalize(small(), SpectralNorm(norm="operator")).double().train()
    assert network(torch.randn(2, 1, 12, 12).double()).logits.dtype == torch.float64
    layer = network.eval().extractor.conv1[0]
    assert operator_norm(layer, (1, 12, 12)) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_norm_is_accurate_under_autocast(norm: Any) -> None:
    network = spectral_normalize(small(), SpectralNorm(norm=norm)).eval()
    exact = network.extractor.conv2[0].weight
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(network.extractor.conv2[0].weight, exact)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_equal_after_removal(norm: Any, training: bool) -> None:
    network = spectral_normalize(small(), SpectralNorm(norm=norm))
    images = torch.randn(2, 1, 12, 12)
    expected = network.eval()(images)
    plain_keys = set(small().state_dict())
    assert remove_spectral_norm(network.train(training)) is network
    assert network.training is training
    assert normalization(network) is None
    assert set(network.state_dict()) == plain_keys
    assert all(type(layer) in (nn.Linear, nn.Conv2d) for layer in layers(network).values())
    outputs = network.eval()(images)
    assert torch.equal(outputs.features, expected.features)
    assert torch.equal(outputs.logits, expected.logits)
    assert remove_spectral_norm(network) is network
    assert normalization(spectral_normalize(network)) is not None


def test_scope() -> None:
    network = spectral_normalize(small(), SpectralNorm(scope="features"))
    normalised = {name for name, layer in layers(network).items() if normalization(layer)}
    assert normalised == {"extractor.conv1.0", "extractor.conv2.0", "extractor.conv3.0"}
    network = spectral_normalize(small())
    assert all(normalization(layer) for layer in layers(network).values())


class Branching(nn.Module):
    """A module with a layer used at two sizes, a sum, and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.signal = nn.Conv1d(2, 3, 3)
        self.head = nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        maps = torch.relu(self.conv(images))
        maps = self.conv(maps[:, :, ::2, ::2])
        return self.head(self.signal(maps.flatten(2)).mean(-1))


@pytest.mark.parametrize("norm", NORMS)
def test_wrapped_network(norm: Any) -> None:
    network = FeatureModule(Branching(), "signal", (2, 8, 8))
    settings = SpectralNorm(norm=norm, scope="features")
    assert spectral_normalize(network, settings) is network
    assert [normalization(layer) is not None for layer in layers(network).values()] == [
        True,
        True,
        False,
    ]
    network.eval()
    conv, signal = network.module.conv, network.module.signal
    if norm == "kernel":
        assert kernel_norm(conv.weight) == pytest.approx(1, rel=1e-5)
    else:
        assert operator_norm(conv, (2, 8, 8)) == pytest.approx(1, rel=1e-5)
        assert operator_norm(conv, (2, 4, 4)) < 1
        assert operator_norm(signal, (2, 16)) == pytest.approx(1, rel=1e-5)
    expected = network(torch.ones(1, 2, 8, 8)).logits
    assert torch.equal(remove_spectral_norm(network)(torch.ones(1, 2, 8, 8)).logits, expected)


def test_normalising_changes_no_mode_statistic_or_random_state() -> None:
    network = ResNet18(1, 2, image_size=8, channels=2).train()
    frozen = network.extractor.stem[1].eval()
    statistics = frozen.running_var.clone()
    generator = torch.get_rng_state()
    spectral_normalize(network, SpectralNorm(norm="operator"))
    assert torch.equal(torch.get_rng_state(), generator)
    assert network.training
    assert not frozen.training
    assert torch.equal(frozen.running_var, statistics)


def test_normalising_twice_is_rejected() -> None:
    network = spectral_normalize(MLP(4, 2))
    with pytest.raises(ValueError, match=r"'extractor.dense1.0' is already"):
        spectral_normalize(network)


def test_other_parametrisations_are_rejected_before_the_network_changes() -> None:
    network = MLP(4, 2)
    nn.utils.parametrizations.weight_norm(network.classifier.logits)
    with pytest.raises(ValueError, match=r"'classifier.logits' is already"):
        spectral_normalize(network)
    assert normalization(network) is None


def test_unsuitable_networks_are_rejected() -> None:
    plain = {"features": nn.Flatten(), "logits": nn.Linear(4, 2)}
    network = Network(plain, (4,), ["features"], {"num_classes": 2, "features": None})
    with pytest.raises(ValueError, match="no Linear"):
        spectral_normalize(network, SpectralNorm(scope="features"))

    module = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), nn.Flatten())
    network = FeatureModule(module, "0", (1, 4, 4))
    with pytest.raises(ValueError, match="padding_mode 'circular'"):
        spectral_normalize(network, SpectralNorm(norm="operator"))
    assert normalization(spectral_normalize(network)) is not None

    unused = Branching()
    unused.spare = nn.Conv2d(1, 1, 3)
    with pytest.raises(ValueError, match="didn't run"):
        spectral_normalize(
            FeatureModule(unused, "signal", (2, 8, 8)), SpectralNorm(norm="operator")
        )

    network = MLP(4, 2)
    nn.init.constant_(network.classifier.logits.weight, math.nan)
    with pytest.raises(ValueError, match=r"'classifier.logits'.*NaN"):
        spectral_normalize(network)


@pytest.mark.parametrize(
    "arguments",
    [
        {"norm": "frobenius"},
        {"scope": "classifier"},
        *({"coefficient": c} for c in (0, -1.0, math.inf, math.nan, "1", True, None)),
        *({"iterations": n} for n in (0, 1.5, True, "2")),
        {"soft": 1},
    ],
    ids=str,
)
def test_invalid_settings_are_rejected(arguments: dict[str, Any]) -> None:
    (name, value), *_ = arguments.items()
    with pytest.raises(ValueError, match=rf"{name} is {value!r}"):
        SpectralNorm(**arguments)


def test_settings_are_json_serialisable() -> None:
    settings = SpectralNorm(norm="operator", scope="features", coefficient=3, soft=True)
    assert SpectralNorm(**json.loads(json.dumps(dataclasses.asdict(settings)))) == settings


def test_operator_norm_with_channels_last():
    """`fit` lays out convolutions as channels last, whose outputs are no contiguous vectors."""
    network = spectral_normalize(ConvNet(3, 2, 8), SpectralNorm(norm="operator"))
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = network.eval()(images).logits
    lay_out(network)
    torch.testing.assert_close(network(images).logits, expected)
    network.train()(images).logits.sum().backward()
