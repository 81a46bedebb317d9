"""Spectral normalisation: each weight divided by an estimate of its largest singular value."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from daedl.checks import require_above_zero, require_finite
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

# As in torch's own: far below any trained σ, yet its inverse is finite in float32.
FLOOR = 1e-12


@dataclass(frozen=True)
class SpectralNorm:
    """How to normalise; every value is JSON's own.

    Arguments:
        norm: "kernel" is that of the kernel reshaped to C_out x (C_in * k * k), as in the paper's
            code. It bounds a dense layer, but not a convolution, whose norm may be up to k times as
            large (constant 5x5 kernel on 28x28 images: 1 against 4.89). "operator" is the norm of
            the convolution itself on its zero-padded input, with stride, dilation and groups.
        scope: "all" Linear, Conv1d and Conv2d layers, as in the published code, or those of the
            "features" alone, as in the paper's text.
        coefficient: the norm that a layer gets; the largest it may have if `soft`.
        soft: leave a layer alone whose norm is below `coefficient` (DDU, coefficient 3).
        iterations: power iterations in each training forward; there are none in eval mode.
    """

    norm: Literal["kernel", "operator"] = "kernel"
    scope: Literal["all", "features"] = "all"
    coefficient: float = 1.0
    soft: bool = False
    iterations: int = 1

    def __post_init__(self) -> None:
        if self.norm not in ("kernel", "operator"):
            raise ValueError(
                f"norm is {self.norm!r}; expected 'kernel' or 'operator': take 'kernel' for the "
                "paper's, 'operator' for one that bounds convolutions"
            )
        if self.scope not in ("all", "features"):
            raise ValueError(
                f"scope is {self.scope!r}; expected 'all' or 'features': take 'all' for every "
                "layer, 'features' for the feature extractor alone"
            )
        require_above_zero("coefficient", self.coefficient, "1 for layers that don't stretch")
        if not isinstance(self.soft, bool):
            raise ValueError(
                f"soft is {self.soft!r}; expected True or False: take True to divide only "
                "where the norm exceeds the coefficient"
            )
        if not isinstance(self.iterations, int) or self.iterations < 1 or self.iterations is True:
            raise ValueError(
                f"iterations is {self.iterations!r}; expected a whole number from 1: "
                "take 1 as the paper does, more if the weights move fast"
            )


PUBLISHED = SpectralNorm()  # what the paper's code does


def spectral_normalize(network: Network, settings: SpectralNorm = PUBLISHED) -> Network:
    """Normalise the layers of `network` in place, and return it.

        hard:  W ← coefficient · W / σ(W)
        soft:  W ← W / max(1, σ(W) / coefficient)
        σ(W) = max over h ≠ 0 of ‖W h‖₂ / ‖h‖₂ ≈ ⟨u, W v⟩

    (the paper's appendix on spectral normalisation; Miyato et al. 2018). Each weight keeps its
    shape: (C_out, C_in) or (C_out, C_in / groups, *kernel). u and v are buffers, converged here and
    whenever a weight is assigned, moved by `settings.iterations` power iterations in each training
    forward, and left alone in eval mode. σ is differentiable in W; u and v are taken as constants.

    BatchNorm isn't touched, and a residual sum adds norms: `lipschitz_bound` says what holds.
    """
    layers = {n: m for n, m in network.named_modules_in(settings.scope) if isinstance(m, Layer)}
    if not layers:
        raise ValueError(
            f"the network has no Linear, Conv1d or Conv2d layer in scope {settings.scope!r}; "
            "expected at least one: take scope='all', or leave spectral normalisation out"
        )
    for name, layer in layers.items():
        if "weight" not in layer._parameters:
            raise ValueError(
                f"the weight of {name!r} is already normalised or otherwise parametrised; expected "
                "plain weights: build the network anew, or call remove_spectral_norm(network) first"
            )
        require_finite(layer.weight, f"weight of {name!r}")
    # Every map is made before any layer is touched: an error leaves the network as it was.
    maps = _maps(network, layers, settings.norm)
    for name, layer in layers.items():
        scaling = _Scaling(maps[name], layer.weight, settings)
        parametrize.register_parametrization(layer, "weight", scaling)
    return network


def normalization(network: nn.Module) -> SpectralNorm | None:
    """The settings that `spectral_normalize` was called with, or None; None again after `bake`."""
    for module in network.modules():
        if isinstance(module, _Scaling):
            return module.settings
    return None


def remove_spectral_norm(network: Network) -> Network:
    """Replace each normalised weight by its eval-mode value, in place, and return the network.

        W ← coefficient · W / ⟨u, W v⟩   (or the soft form), once and for all

    The forward pass in eval mode stays the same to the last bit; the weights are plain parameters
    again, fit for export. A network without normalisation is returned as it is.
    """
    with evaluating(network):
        for layer in list(network.modules()):
            lists = getattr(layer, "parametrizations", {})
            if "weight" not in lists or normalization(lists["weight"]) is None:
                continue
            # torch deletes the `weight` property from the layer's class, which deep copies share:
            # without a class of its own, baking a copy would break the original.
            own = type(layer)
            layer.__class__ = type(own.__name__, own.__bases__, dict(vars(own)))
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    return network


class _Scaling(nn.Module):
    """Parametrisation of one weight: W to W times a factor, by the running estimate ⟨u, W v⟩."""

    u: Tensor
    v: Tensor

    def __init__(self, linear: LinearMap, weight: Tensor, settings: SpectralNorm) -> None:
        super().__init__()
        self.linear = linear
        self.settings = settings
        # Registering calls right_inverse, which fills them.
        v = weight.new_zeros(linear.input_shape(weight))
        with torch.no_grad():
            self.register_buffer("u", torch.zeros_like(linear.apply(weight, v)))
        self.register_buffer("v", v)

    def forward(self, weight: Tensor) -> Tensor:
        """The normalised weight, of the shape of `weight`."""
        # In the half precision of autocast σ would be off by up to a hundredth.
        with torch.autocast(weight.device.type, enabled=False):
            if self.training:
                self._iterate(weight)
            # Copies: a second forward moves the buffers in place before the first one's backward.
            sigma = (self.u.clone() * self.linear.apply(weight, self.v.clone())).sum()
            coefficient = self.settings.coefficient
            if self.settings.soft:
                return weight / (sigma / coefficient).clamp_min(1.0)
            # A layer of zeros has σ = 0, and 0 / 0 would be NaN.
            return weight * (coefficient / sigma.clamp_min(FLOOR))

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Take `weight` as the one to be normalised, and converge u and v on it at once."""
        found = top_singular(self.linear, weight)
        self.u.copy_(found.u)
        self.v.copy_(found.v)
        return weight

    @torch.no_grad()
    def _iterate(self, weight: Tensor) -> None:
        for _ in range(self.settings.iterations):
            _move(self.u, self.linear.apply(weight, self.v))
            _move(self.v, self.linear.adjoint(weight, self.u))


def _move(vector: Tensor, towards: Tensor) -> None:
    """Set `vector` to the direction `towards`; one of length 0 has none, so then it stays."""
    length = towards.norm()
    vector.copy_(torch.where(length > 0, towards / length.clamp_min(FLOOR), vector))


def _maps(network: Network, layers: dict[str, Layer], norm: str) -> dict[str, LinearMap]:
    """For each layer the map whose norm is to be normalised."""
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
                f"convolution {name!r} has padding_mode {layer.padding_mode!r}; the operator norm "
                "expects 'zeros': change the layer, or take norm='kernel'"
            )
        if not sizes[layer]:
            raise ValueError(
                f"convolution {name!r} didn't run on a blank input, so its input size is unknown; "
                "expected every layer in scope to run: remove it, or take norm='kernel'"
            )
        axes = len(layer.kernel_size)
        # Should a shared layer see several sizes: the norm on the largest bounds the others.
        seen = [shape[-axes:] for shape in sizes[layer]]
        maps[name] = convolution(layer, tuple(max(axis) for axis in zip(*seen, strict=True)))
    return maps
