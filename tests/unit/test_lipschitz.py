"""Lemma 1 as a property, its counterexamples, and bounds against adversarial search."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import daedl
from daedl.networks import (
    MLP,
    ConvNet,
    FeatureModule,
    Network,
    ResNet18,
)
from daedl.spectral import (
    LipschitzBound,
    SpectralNorm,
    lipschitz_bound,
    remove_spectral_norm,
    spectral_normalize,
)

TOLERANCE = 1e-4


@functools.cache
def convnet(norm: Any, seed: int = 0, positive: bool = False) -> Network:
    torch.manual_seed(seed)
    network = ConvNet(1, 3, image_size=12, channels=8, hidden=(8,)).double()
    if positive:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.abs_()
    return spectral_normalize(network, SpectralNorm(norm=norm)).eval()


def stretch(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Largest change of the output for a small step from `x`, relative to the length of the step.

    The Jacobian's leading right vector is the step; the figure is from two real inputs, not from J.
    """
    # One copy of x per output, so that a single backward pass computes all rows.
    copies = x.repeat(function(x).shape[1], *[1] * (x.ndim - 1)).requires_grad_()
    (rows,) = torch.autograd.grad(function(copies).diagonal().sum(), copies)
    step = 1e-6 * torch.linalg.svd(rows.flatten(1), full_matrices=False).Vh[0].view(x.shape)
    with torch.no_grad():
        return float((function(x + step) - function(x)).norm() / step.norm())


def worst(network: Network, part: str = "features", tries: int = 3) -> float:
    """Largest stretch from bright, dark, mixed and smooth inputs."""
    network = network.double().eval()
    shape = (1, *network.input_shape)

    def function(x: Tensor) -> Tensor:
        return getattr(network(x), part)

    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(tries)]
    starts = [x for n in noise for x in (n, 5 + n.abs(), -5 - n, 1 + 1e-3 * n)]
    return max(stretch(function, x) for x in starts)


pairs = st.tuples(st.integers(0, 10**6), st.floats(-6, 3), st.floats(-3, 3), st.booleans())


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_lemma_1_distances_of_random_pairs_do_not_increase(
    pair: tuple[int, float, float, bool],
) -> None:
    seed, distance, offset, positive = pair
    generator = torch.Generator().manual_seed(seed)
    x, step = torch.randn(2, 1, 1, 12, 12, generator=generator, dtype=torch.float64)
    step *= 10**distance
    with torch.no_grad():
        first, second = (
            convnet("operator", positive=positive)(y + offset).features for y in (x, x + step)
        )
    assert float((first - second).norm()) <= (1 + TOLERANCE) * float(step.norm())


@pytest.mark.parametrize(("seed", "positive"), [(0, False), (1, False), (0, True), (1, True)])
def test_lemma_1_holds_against_a_search_with_the_operator_norm(seed: int, positive: bool) -> None:
    network = convnet("operator", seed, positive)
    computed = worst(network)
    assert 0 < computed <= 1 + TOLERANCE
    assert worst(network, "logits", tries=1) <= 1 + TOLERANCE


def test_lemma_1_is_nearly_tight_without_pooling() -> None:
    torch.manual_seed(0)
    convolutions = nn.Conv2d(1, 4, 5, padding=2), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
    blocks = {"maps": nn.Sequential(*convolutions), "flatten": nn.Flatten()}
    network = Network(
        blocks | {"logits": nn.Linear(256, 2)},
        (1, 8, 8),
        ["flatten"],
        {"num_classes": 2, "features": None},
    ).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.abs_()
    spectral_normalize(network, SpectralNorm(norm="operator"))
    assert 0.95 < worst(network) <= 1 + TOLERANCE
    assert lipschitz_bound(network).value == pytest.approx(1, abs=TOLERANCE)


def test_lemma_1_fails_with_the_kernel_norm() -> None:
    network = ConvNet(1, 3, image_size=12, channels=8, hidden=(8,)).double()
    for i in (1, 2, 3):
        nn.init.ones_(network.extractor.get_submodule(f"conv{i}.0").weight)
    spectral_normalize(network, SpectralNorm(norm="kernel"))
    computed = worst(network)
    assert computed > 1.5
    bound = lipschitz_bound(network)
    assert bound.value >= computed
    assert any("kernel norm is 1 but its operator norm is 4." in note for note in bound.notes)


def test_the_worked_example_is_noted() -> None:
    blocks = {"conv": nn.Conv2d(1, 1, 5, padding=2), "flatten": nn.Flatten()}
    network = Network(
        blocks | {"logits": nn.Linear(784, 2)},
        (1, 28, 28),
        ["flatten"],
        {"num_classes": 2, "features": None},
    )
    nn.init.ones_(network.extractor.conv.weight)
    bound = lipschitz_bound(spectral_normalize(network))
    assert bound.value == pytest.approx(4.89, abs=5e-3)
    (note,) = bound.notes
    assert "extractor.conv's kernel norm is 1 but its operator norm is 4.89" in note


def vgg_like() -> Network:
    blocks: dict[str, nn.Module] = {}
    for number, (before, after) in enumerate([(2, 4), (4, 6)]):
        blocks[f"group{number}"] = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
    blocks["flatten"] = nn.Flatten()
    blocks["dense"] = nn.Sequential(nn.Dropout(0.5), nn.Linear(24, 8), nn.ReLU())
    blocks["logits"] = nn.Linear(8, 3)
    return Network(blocks, (2, 8, 8), ["flatten"], {"num_classes": 3, "features": None})


def strided() -> Network:
    """Overlapping pools of both types, a stride that doesn't divide the size, dilation and groups."""
    blocks: dict[str, nn.Module] = {
        "conv": nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
        "max": nn.MaxPool2d(3, stride=1, padding=1),
        "dilated": nn.Conv2d(4, 4, 3, padding="same", dilation=2),
        "average": nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        "signal": nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 4, 3), nn.MaxPool1d(2, stride=1)),
        "flatten": nn.Flatten(),
    }
    return Network(
        blocks | {"logits": nn.Linear(52, 3)},
        (2, 15, 13),
        ["flatten"],
        {"num_classes": 3, "features": None},
    )


BUILDS: dict[str, Callable[[], Network]] = {
    "MLP": lambda: MLP(6, 3, hidden=(10, 8)),
    "ConvNet": lambda: ConvNet(1, 3, image_size=8, channels=4, hidden=(8,)),
    "VGG": vgg_like,
    "ResNet18": lambda: ResNet18(1, 3, image_size=8, channels=4),
    "strided": strided,
}


def built(name: str, positive: bool) -> Network:
    torch.manual_seed(0)
    network = BUILDS[name]()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.2, 2)
            nn.init.normal_(module.weight)
    if positive:  # signals then add up instead of cancelling
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.abs_()
    return network.double()


@pytest.mark.parametrize("how", [None, "kernel", "operator"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("name", BUILDS)
def test_no_stretch_exceeds_the_bound(name: str, positive: bool, how: Any) -> None:
    network = built(name, positive)
    if how:
        spectral_normalize(network, SpectralNorm(norm=how))
    for part in ("features", "logits"):
        computed = worst(network, part, tries=1)
        bound = lipschitz_bound(network, part)
        assert 0 < computed <= bound.value * (1 + 1e-6)
        assert math.isfinite(bound.value)
        assert bound.value == pytest.approx(math.prod(layer.factor for layer in bound.layers))


@pytest.mark.parametrize("norm", ["kernel", "operator"])
def test_network_is_unchanged_and_the_bound_is_kept_without_parametrisation(norm: Any) -> None:
    network = spectral_normalize(built("VGG", False), SpectralNorm(norm=norm)).train()
    frozen = network.extractor.group0[1].eval()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    before = lipschitz_bound(network, "logits")
    assert network.training
    assert not frozen.training
    assert all(torch.equal(state[name], tensor) for name, tensor in network.state_dict().items())
    assert lipschitz_bound(remove_spectral_norm(network), "logits") == before


def test_convnet_with_operator_norms_has_bound_one() -> None:
    bound = lipschitz_bound(convnet("operator"), "logits")
    assert bound.value == pytest.approx(1, abs=TOLERANCE)
    assert bound.notes == ()


def test_notes_on_batch_norm_and_residual_sums() -> None:
    network = spectral_normalize(built("ResNet18", False), SpectralNorm(norm="operator"))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.constant_(module.running_var, 0.25)
    bound = lipschitz_bound(network)
    batch_norm, residual = bound.notes
    assert "BatchNorm isn't spectrally normalised" in batch_norm
    assert "eval mode" in batch_norm
    assert "largest is 2" in batch_norm
    assert "residual sum" in residual
    blocks = [layer for layer in bound.layers if layer.kind == "ResidualBlock"]
    assert len(blocks) == 8
    # Identity shortcut, and a branch of two layers of norm 1 each doubled by its BatchNorm.
    assert blocks[0].factor == pytest.approx(1 + 2 * 2, rel=1e-3)
    assert len(blocks[0].inside) == 7


def test_text_has_one_row_per_layer_with_a_factor_other_than_one() -> None:
    text = str(lipschitz_bound(built("ResNet18", False), "logits"))
    head, *rows = text.splitlines()
    assert head.startswith("Lipschitz bound of the logits in eval mode: ")
    assert any(row.startswith("  extractor.stage1.0 ") and "ResidualBlock" in row for row in rows)
    assert any(row.startswith("    extractor.stage1.0.branch.0 ") for row in rows)
    assert rows[-1].startswith("note: the bound of a residual sum")
    assert "ReLU" not in text


def bound_of(*modules: nn.Module, shape: tuple[int, ...] = (2, 6, 6)) -> LipschitzBound:
    blocks = {f"block{i}": module for i, module in enumerate(modules)}
    width = nn.Sequential(*modules).eval()(torch.zeros(1, *shape)).flatten(1).shape[1]
    rest = {"flatten": nn.Flatten(), "logits": nn.Linear(width, 2)}
    return lipschitz_bound(
        Network(blocks | rest, shape, ["flatten"], {"num_classes": 2, "features": None})
    )


@pytest.mark.parametrize(
    ("module", "factor"),
    [
        (nn.MaxPool2d(2), 1),
        (nn.MaxPool2d(3, stride=2), 2),
        (nn.MaxPool2d((3, 2), stride=(1, 2)), math.sqrt(3)),
        (nn.MaxPool2d(2, stride=1, dilation=2), 2),
        (nn.AvgPool2d(2), 1 / 2),
        (nn.AvgPool2d(3), 1 / 3),
        (nn.AvgPool2d(3, stride=1), 1),
        (nn.AdaptiveAvgPool2d(1), 1 / 6),
        (nn.AdaptiveAvgPool2d(6), 1),
        (nn.Dropout(0.5), 1),
        (nn.Tanh(), 1),
        (nn.BatchNorm2d(2, affine=False, eps=0), 1),
    ],
    ids=str,
)
def test_factors(module: nn.Module, factor: float) -> None:
    assert bound_of(module).value == pytest.approx(factor)


def test_factor_of_batch_norm_is_its_largest_scale() -> None:
    layer = nn.BatchNorm2d(2, eps=0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -6.0]))
        layer.running_var.copy_(torch.tensor([0.25, 4.0]))
    bound = bound_of(layer)
    assert bound.value == pytest.approx(3)
    assert "the largest is 3, at extractor.block0" in bound.notes[0]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_average_pooling_is_bounded_by_its_dense_matrix(size: int, stride: int) -> None:
    pool = nn.AvgPool2d(size, stride=stride, padding=size // 2, ceil_mode=True)
    basis = torch.eye(36, dtype=torch.float64).view(36, 1, 6, 6)
    exact = float(torch.linalg.matrix_norm(pool(basis).flatten(1).T, 2))
    assert exact <= bound_of(pool).value * (1 + 1e-9) <= 1 + 1e-9


class Doubling(nn.ReLU):
    def forward(self, maps: Tensor) -> Tensor:
        return 2 * super().forward(maps)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Softsign(), "Softsign"),
        (Doubling(), "Doubling"),
        (nn.LayerNorm(6), "LayerNorm"),
        (nn.BatchNorm2d(2, track_running_stats=False), "BatchNorm2d"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "Conv2d with reflect padding"),
    ],
    ids=str,
)
def test_unknown_modules_are_unbounded_and_named(module: nn.Module, named: str) -> None:
    bound = bound_of(module, nn.MaxPool2d(2))
    assert bound.value == math.inf
    assert f"extractor.block0 is a {named} that can't be bounded" in bound.notes[0]


def test_repeated_modules_are_counted_repeatedly() -> None:
    shared = nn.Conv2d(2, 2, 3, padding=1)
    once, twice = bound_of(shared), bound_of(nn.Sequential(shared, shared))
    assert twice.value == pytest.approx(once.value**2, rel=1e-5)


class Own(nn.Module):
    def __init__(self, scale: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.act = nn.ReLU()
        self.unused = nn.Linear(3, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2, 3))
        if scale:
            self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.act(self.conv(self.act(images)))))


def test_bound_of_a_feature_module_has_a_note() -> None:
    torch.manual_seed(0)
    network = spectral_normalize(
        FeatureModule(Own(), "pool", (1, 6, 6)), SpectralNorm(scope="features")
    )
    bound = lipschitz_bound(network)
    assert [layer.name for layer in bound.layers] == [
        "module.conv",
        "module.act",
        "module.act",
        "module.pool",
    ]
    assert "execution order" in bound.notes[0]
    logits = lipschitz_bound(network, "logits")
    assert [layer.kind for layer in logits.layers][3:] == ["AdaptiveAvgPool2d", "Flatten", "Linear"]
    assert any("module.unused (Linear) didn't run" in note for note in logits.notes)
    assert worst(network, tries=1) <= bound.value
    assert worst(network, "logits", tries=1) <= logits.value


def test_feature_module_with_its_own_parameters_is_unbounded() -> None:
    bound = lipschitz_bound(FeatureModule(Own(scale=True), "pool", (1, 6, 6)))
    assert bound.value == math.inf
    assert any("module is a Own that can't be bounded" in note for note in bound.notes)


def test_invalid_arguments_are_rejected() -> None:
    network = MLP(4, 2)
    with pytest.raises(ValueError, match="part is 'head'"):
        lipschitz_bound(network, "head")  # type: ignore[arg-type]
    nn.init.constant_(network.classifier.logits.weight, math.nan)
    with pytest.raises(ValueError, match=r"classifier.logits.weight: .* NaN"):
        lipschitz_bound(network)


def test_classifier_is_rejected():
    model = daedl.Classifier(MLP(2, 2), "edl")
    with pytest.raises(TypeError, match="Classifier"):
        lipschitz_bound(model)
