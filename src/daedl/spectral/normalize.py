"""Spectral normalisation: divides weights by an estimate of their largest singular value."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from daedl.checks import Number, require_finite, require_settings
from daedl.networks.base import Network
from daedl.outputs import evaluating
from daedl.spectral.maps import (
    KernelMatrix,
    LinearMap,
    convolution,
    input_sizes,
    top_singular,
)

Layer = nn.Linear | nn.Conv1d | nn.Conv2d

# As in torch.nn.utils: far below any trained σ, and its inverse is finite in float32.
FLOOR = 1e-12


@dataclass(frozen=True)
class SpectralNorm:
    """Settings of spectral normalisation; all values are JSON-serialisable.

    Arguments:
        norm: "kernel" is the norm of the kernel reshaped to C_out x (C_in * k * k), as in the paper's
            code. It bounds a dense layer, but not a convolution, whose norm can be up to k times as
            large (constant 5x5 kernel on 28x28 images: 1 against 4.89). "operator" is the norm of
            the convolution on its zero-padded input, with stride, dilation and groups.
        scope: "all" Linear, Conv1d and Conv2d layers, as in the published code, or only those of the
            "features", as in the paper's text.
        coefficient: target norm of a layer; the maximum norm if `soft`.
        soft: do not change layers with a norm below `coefficient` (DDU, coefficient 3).
        iterations: power iterations per training forward pass; none in eval mode.
    """

    norm: Literal["kernel", "operator"] = "kernel"
    scope: Literal["all", "features"] = "all"
    coefficient: Annotated[float, Number(0, above=True, limit=1e4)] = 1.0  # limit chosen
    soft: bool = False
    iterations: Annotated[int, Number(1, limit=1001, whole=True)] = 1  # limit chosen

    def __post_init__(self) -> None:
        require_settings(self)


PUBLISHED = SpectralNorm()  # as in the paper's code
# Costs no accuracy on two moons, tables and 150 classes, where PUBLISHED does; the coefficient is DDU's. The
# last layer is free: the density sees features only, and logits of many classes need a larger norm.
DEFAULT = SpectralNorm(scope="features", coefficient=3.0)


def spectral_normalize(
    network: Network, settings: SpectralNorm = PUBLISHED, *, converge: bool = True
) -> Network:
    """Normalise the layers of `network` in place, and return it.

        hard:  W ← coefficient · W / σ(W)
        soft:  W ← W / max(1, σ(W) / coefficient)
        σ(W) = max over h ≠ 0 of ‖W h‖₂ / ‖h‖₂ ≈ ⟨u, W v⟩

    (the paper's appendix on spectral normalisation; Miyato et al. 2018). Weights keep their shape:
    (C_out, C_in) or (C_out, C_in / groups, *kernel). u and v are buffers. They are converged here and
    whenever a weight is assigned, updated by `settings.iterations` power iterations per training forward
    pass, and fixed in eval mode. σ is differentiable in W; u and v are treated as constants.

    BatchNorm isn't normalised, and a residual sum adds norms: `lipschitz_bound` computes the bound of the
    whole network. `converge=False` omits the first convergence, if u and v are loaded afterwards.
    """
    layers = {n: m for n, m in network.named_modules_in(settings.scope) if isinstance(m, Layer)}
    if not layers:
        raise ValueError(
            f"the network has no Linear, Conv1d or Conv2d layer in scope {settings.scope!r}; "
            "expected at least one: use scope='all', or disable spectral normalisation"
        )
    for name, layer in layers.items():
        if "weight" not in layer._parameters:
            raise ValueError(
                f"the weight of {name!r} is already normalised or otherwise parametrised; expected a "
                "plain parameter: build a new network, or call remove_spectral_norm(network) first"
            )
        require_finite(layer.weight, f"weight of {name!r}")
    # All maps are built before any layer changes, so an error leaves the network unchanged.
    maps = _maps(network, layers, settings.norm)
    for name, layer in layers.items():
        scaling = _Scaling(maps[name], layer.weight, settings).train(layer.training)
        scaling.converge = converge
        parametrize.register_parametrization(layer, "weight", scaling)
        scaling.converge = True
    return network


def normalization(network: nn.Module) -> SpectralNorm | None:
    """Settings of the network's spectral normalisation; None if it is not normalised."""
    for module in network.modules():
        if isinstance(module, _Scaling):
            return module.settings
    return None


def remove_spectral_norm(network: Network) -> Network:
    """Replace each normalised weight by its eval-mode value, in place, and return the network.

        W ← coefficient · W / ⟨u, W v⟩   (or the soft form), once and for all

    The eval-mode forward pass is bit-identical, and weights are plain parameters again, as required for
    export. A network without normalisation is returned unchanged.
    """
    with evaluating(network):
        for layer in list(network.modules()):
            lists = getattr(layer, "parametrizations", {})
            if "weight" not in lists or normalization(lists["weight"]) is None:
                continue
            # torch deletes the `weight` property from the layer's class, which deep copies share. The
            # layer gets its own class, otherwise removal in a copy would break the original.
            own = type(layer)
            layer.__class__ = type(own.__name__, own.__bases__, dict(vars(own)))
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    return network


class _Scaling(nn.Module):
    """Parametrisation of one weight: scales W by the running estimate ⟨u, W v⟩ of its norm."""

    u: Tensor
    v: Tensor
    converge = True

    def __init__(self, linear: LinearMap, weight: Tensor, settings: SpectralNorm) -> None:
        super().__init__()
        self.linear = linear
        self.settings = settings
        # Registering the parametrisation calls right_inverse, which sets u and v.
        v = weight.new_zeros(linear.input_shape(weight))
        with torch.no_grad():
            self.register_buffer("u", torch.zeros_like(linear.apply(weight, v)))
        self.register_buffer("v", v)

    def forward(self, weight: Tensor) -> Tensor:
        """Normalised weight, same shape as `weight`."""
        if torch.is_autocast_enabled(weight.device.type):
            # In half precision the relative error of σ would be up to 1%.
            with torch.autocast(weight.device.type, enabled=False):
                return self.forward(weight)
        if self.training:
            self._iterate(weight)
        # Clones: a second forward pass changes the buffers in place before the first backward pass.
        image = self.linear.apply(weight, self.v.clone())
        sigma = torch.dot(self.u.clone().flatten(), image.flatten())
        coefficient = self.settings.coefficient
        if self.settings.soft:
            return weight / (sigma / coefficient).clamp_min(1.0)
        # A zero weight has σ = 0, and 0 / 0 would be NaN.
        return weight * (coefficient / sigma.clamp_min(FLOOR))

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Set the unnormalised weight, and converge u and v on it."""
        if self.converge:
            singular = top_singular(self.linear, weight)
            self.u.copy_(singular.u)
            self.v.copy_(singular.v)
        return weight

    @torch.no_grad()
    def _iterate(self, weight: Tensor) -> None:
        for _ in range(self.settings.iterations):
            _set_direction(self.u, self.linear.apply(weight, self.v))
            _set_direction(self.v, self.linear.adjoint(weight, self.u))


def _set_direction(vector: Tensor, value: Tensor) -> None:
    """Set `vector` to the normalised `value`, in place; unchanged if `value` is zero."""
    # FLOOR times the old direction is lost in rounding unless `value` is zero; a test for zero would take
    # more operations.
    value.add_(vector, alpha=FLOOR)
    torch.div(value, torch.linalg.vector_norm(value), out=vector)


def _maps(network: Network, layers: dict[str, Layer], norm: str) -> dict[str, LinearMap]:
    """The linear map of each layer whose norm is normalised."""
    if norm == "kernel":
        return {name: KernelMatrix() for name in layers}
    sizes = input_sizes(network)
    maps: dict[str, LinearMap] = {}
    for name, layer in layers.items():
        if isinstance(layer, nn.Linear):
            maps[name] = KernelMatrix()
            continue
        if layer.padding_mode != "zeros":
            raise ValueError(
                f"convolution {name!r} has padding_mode {layer.padding_mode!r}; expected 'zeros' for the "
                "operator norm: change the layer, or use norm='kernel'"
            )
        if not sizes[layer]:
            raise ValueError(
                f"convolution {name!r} didn't run on a zero input, so its input size is unknown; "
                "expected every layer in scope to run: remove it, or use norm='kernel'"
            )
        axes = len(layer.kernel_size)
        # If a shared layer has several input sizes, the norm on the largest bounds the others.
        seen = [shape[-axes:] for shape in sizes[layer]]
        maps[name] = convolution(layer, tuple(max(axis) for axis in zip(*seen, strict=True)))
    return maps
