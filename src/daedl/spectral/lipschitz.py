"""Upper bounds on the Lipschitz constant of a network from inputs to features or logits."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import parametrize

from daedl.checks import require_finite
from daedl.networks.base import Network
from daedl.networks.resnet import ResidualBlock
from daedl.outputs import evaluating
from daedl.spectral.maps import (
    KernelMatrix,
    Size,
    convolution,
    input_sizes,
    top_singular,
)

Sizes = Mapping[nn.Module, list[Size]]

# Tolerance above 1 (chosen): covers estimates that lag behind a trained weight, but no relevant excess.
SLACK = 1e-2


@dataclass(frozen=True)
class LayerBound:
    """Lipschitz bound `factor` of one layer; for a residual block also the bounds `inside` it.

    `kernel_norm` is the norm of a convolution's reshaped kernel, for comparison with its factor.
    """

    name: str
    kind: str
    factor: float
    kernel_norm: float | None = None
    inside: tuple["LayerBound", ...] = ()

    def rows(self, depth: int = 0) -> Iterator[tuple[int, "LayerBound"]]:
        """Yield this layer and the layers inside it, with their depths."""
        yield depth, self
        for layer in self.inside:
            yield from layer.rows(depth + 1)


@dataclass(frozen=True)
class LipschitzBound:
    """`value` is the product of the factors of `layers`; `notes` state assumptions and limitations.

    For features of several blocks it is √(Σ_k L_k²), L_k the product up to block k: pooling is 1-Lipschitz.
    """

    part: str
    value: float
    layers: tuple[LayerBound, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = f"Lipschitz bound of the {self.part} in eval mode: {self.value:.4g}"
        rows = [row for layer in self.layers for row in layer.rows(1)]
        # Layers with a factor of exactly 1, such as ReLU, are omitted.
        rows = [(depth, layer) for depth, layer in rows if layer.factor != 1]
        width = max((2 * depth + len(layer.name) for depth, layer in rows), default=0)
        table = [
            f"{'  ' * depth + layer.name:<{width}}  {layer.kind:<17}  {layer.factor:.4g}"
            for depth, layer in rows
        ]
        return "\n".join([head, *table, *(f"note: {note}" for note in self.notes)])


def lipschitz_bound(
    network: Network, part: Literal["features", "logits"] = "features"
) -> LipschitzBound:
    """Bound the Lipschitz constant of `network` in eval mode, from inputs to features or logits.

        ‖f(x₁) − f(x₂)‖₂ ≤ value · ‖x₁ − x₂‖₂,   value = ∏ over layers of the layer's factor

    (the paper's Lemma 1 claims value = 1 after spectral normalisation). Factors are converged norms
    of the effective weights as linear maps on inputs of the network's size; that of a residual block
    is bound(shortcut) + bound(branch). With a module of unknown type the value is infinite, and a note
    names the module. The network is not changed.
    """
    if not isinstance(network, Network):
        raise TypeError(
            f"network is a {type(network).__name__}; expected a daedl.networks.Network: for a classifier "
            "pass model.network"
        )
    if part not in ("features", "logits"):
        raise ValueError(
            f"part is {part!r}; expected 'features' or 'logits': use the output that you want to bound"
        )
    for name, tensor in network.state_dict().items():
        require_finite(tensor, name)
    sizes = input_sizes(network)
    notes: list[str] = []
    with evaluating(network), torch.no_grad():
        # With a custom forward only the list of modules is known.
        if type(network).forward is Network.forward:
            layers = _chain("extractor", network.extractor, sizes)
            if part == "logits":
                layers += _chain("classifier", network.classifier, sizes)
        else:
            layers = _leaves(network, part, sizes, notes)
    for layer in layers:
        notes += _notes_on(layer)
    notes += _notes_on_kinds(layers)
    return LipschitzBound(part, _joined(network, part, layers), tuple(layers), tuple(notes))


def _chain(name: str, module: nn.Module, sizes: Sizes) -> list[LayerBound]:
    """Factors of modules that run in sequence."""
    if _is(module, nn.Sequential):
        # Not named_children(), which omits repeated modules.
        children = module._modules.items()
        return [
            b for key, child in children if child for b in _chain(f"{name}.{key}", child, sizes)
        ]
    runs = [_layer(name, module, shape, sizes) for shape in sizes[module]]
    return [max(runs, key=lambda layer: layer.factor)] if runs else [_unknown(name, module)]


def _leaves(network: Network, part: str, sizes: Sizes, notes: list[str]) -> list[LayerBound]:
    """Factors of all modules of known type, one per call."""
    notes.append(
        "the execution order of the modules is unknown: the product assumes that they run in sequence, "
        "without sums between them or operations outside of modules"
    )
    layers: list[LayerBound] = []
    counted = "\0"
    for name, module in network.named_modules_in("features" if part == "features" else "all"):
        if name.startswith(f"{counted}."):
            continue
        known = any(_is(module, kind) for kind in (*FACTORS, ResidualBlock))
        leaf = known or not any(module.children())
        if leaf and sizes[module]:
            layers += [_layer(name, module, shape, sizes) for shape in sizes[module]]
        elif leaf and any(True for _ in module.parameters()):
            notes.append(f"{name} ({_kind(module)}) didn't run on a zero input and isn't counted")
        elif not leaf and any(p is not None for p in module._parameters.values()):
            layers.append(_unknown(name, module))
        counted = name if leaf else counted
    return layers


def _layer(name: str, module: nn.Module, shape: Size, sizes: Sizes) -> LayerBound:
    """Factor of one module on an input of `shape`; infinite for unknown types."""
    if _is(module, ResidualBlock):
        return _residual(name, module, sizes)  # type: ignore[arg-type]
    factors = [bound(module, shape) for kind, bound in FACTORS.items() if _is(module, kind)]
    layer = LayerBound(name, _kind(module), factors[0] if factors else math.inf)
    if isinstance(module, nn.Conv1d | nn.Conv2d) and math.isfinite(layer.factor):
        return replace(layer, kernel_norm=top_singular(KernelMatrix(), module.weight).sigma)
    return layer


def _linear(layer: nn.Linear, shape: Size) -> float:
    del shape
    return float(torch.linalg.matrix_norm(layer.weight.double(), 2))


def _convolution(layer: nn.Conv1d | nn.Conv2d, shape: Size) -> float:
    """Operator norm on an input of `shape`; infinite for padding other than with zeros."""
    if layer.padding_mode != "zeros":
        return math.inf
    linear = convolution(layer, shape[-len(layer.kernel_size) :])
    return top_singular(linear, layer.weight).upper


def _residual(name: str, block: ResidualBlock, sizes: Sizes) -> LayerBound:
    """The constant of ReLU(shortcut(x) + branch(x)) is at most the sum of both."""
    shortcut = _chain(f"{name}.shortcut", block.shortcut, sizes)
    branch = _chain(f"{name}.branch", block.branch, sizes)
    activation = _chain(f"{name}.activation", block.activation, sizes)
    factor = (_product(shortcut) + _product(branch)) * _product(activation)
    return LayerBound(name, _kind(block), factor, inside=(*shortcut, *branch, *activation))


def _batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, shape: Size) -> float:
    """max |γ| / √(running variance + ε); infinite without running statistics."""
    del shape
    if layer.running_var is None:
        return math.inf
    scale = (layer.running_var.double() + layer.eps).rsqrt()
    return float((scale if layer.weight is None else scale * layer.weight.double().abs()).max())


def _max_pool(layer: nn.MaxPool1d | nn.MaxPool2d, shape: Size) -> float:
    """√(number of windows per pixel): a maximum changes by at most the change of its window."""
    del shape
    axes = 2 if isinstance(layer, nn.MaxPool2d) else 1
    windows = 1
    for k, s, d in zip(
        *(_per_axis(n, axes) for n in (layer.kernel_size, layer.stride, layer.dilation)),
        strict=True,
    ):
        windows *= min(k, math.ceil((d * (k - 1) + 1) / s))
    return math.sqrt(windows)


@torch.enable_grad()
def _average_pool(layer: nn.Module, shape: Size) -> float:
    """‖A‖₂ ≤ √(largest row sum · largest column sum), exact for disjoint windows."""
    axes = 1 if isinstance(layer, nn.AvgPool1d | nn.AdaptiveAvgPool1d) else 2
    ones = torch.ones(1, 1, *shape[-axes:], dtype=torch.float64, requires_grad=True)
    rows = layer(ones)
    (columns,) = torch.autograd.grad(rows.sum(), ones)
    return math.sqrt(float(rows.detach().max()) * float(columns.max()))


def _one(layer: nn.Module, shape: Size) -> float:
    """Layers that are 1-Lipschitz in eval mode: their slope is at most 1, or they rearrange values."""
    del layer, shape
    return 1.0


FACTORS: Mapping[type[nn.Module], Callable[[Any, Size], float]] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _batch_norm),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d), _max_pool),
    **dict.fromkeys(
        (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d), _average_pool
    ),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.Softplus), _one),
    **dict.fromkeys((nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d), _one),
}


def _notes_on(layer: LayerBound) -> list[str]:
    """Notes on unbounded layers, and on convolutions whose kernel norm is misleading."""
    notes = []
    for _, row in layer.rows():
        if math.isinf(row.factor) and not any(math.isinf(inner.factor) for inner in row.inside):
            notes.append(
                f"{row.name} is a {row.kind} that can't be bounded, so the network can't either"
            )
        elif row.kernel_norm is not None and row.kernel_norm <= 1 + SLACK < row.factor:
            notes.append(
                f"{row.name}'s kernel norm is {row.kernel_norm:.3g} but its operator norm is "
                f"{row.factor:.3g}: normalise with norm='operator' to bound it"
            )
    return notes


def _notes_on_kinds(layers: list[LayerBound]) -> list[str]:
    rows = [row for layer in layers for _, row in layer.rows()]
    notes = []
    batch_norms = [row for row in rows if row.kind.startswith("BatchNorm")]
    if batch_norms:
        largest = max(batch_norms, key=lambda row: row.factor)
        notes.append(
            "BatchNorm isn't spectrally normalised: its factors hold only in eval mode and can "
            f"exceed 1 (the largest is {largest.factor:.3g}, at {largest.name})"
        )
    if any(row.kind == "ResidualBlock" for row in rows):
        notes.append(
            "the bound of a residual sum is the sum of both branches: with 1-Lipschitz layers it is 2 "
            "per block, not 1"
        )
    return notes


def _product(layers: list[LayerBound]) -> float:
    value = math.prod(layer.factor for layer in layers)
    return math.inf if math.isnan(value) else value  # 0 times an unbounded layer


def _joined(network: Network, part: str, layers: list[LayerBound]) -> float:
    """√(Σ_k L_k²) over the blocks of the features; the product of all factors for one block or the logits."""
    if part == "logits" or type(network).forward is not Network.forward:
        return _product(layers)
    ends = [f"extractor.{name}" for name in network.depths]
    last = [max(i for i, each in enumerate(layers) if _in(each.name, end)) for end in ends]
    return math.hypot(*(_product(layers[: i + 1]) for i in last))


def _in(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


def _unknown(name: str, module: nn.Module) -> LayerBound:
    return LayerBound(name, _kind(module), math.inf)


def _is(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `module` is a `kind` with the same forward; a subclass may override it."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def _kind(module: nn.Module) -> str:
    """Class name, without the subclass that a parametrisation creates, and unusual padding."""
    kind = type(module)
    name = (kind.__bases__[0] if parametrize.is_parametrized(module) else kind).__name__
    padding = getattr(module, "padding_mode", "zeros")
    return name if padding == "zeros" else f"{name} with {padding} padding"


def _per_axis(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)
