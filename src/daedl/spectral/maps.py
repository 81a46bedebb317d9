"""The linear maps whose norms are asked for, and their largest singular value without a matrix."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.networks.base import Network
from daedl.outputs import evaluating

Size = tuple[int, ...]

# Chosen: 24 steps keep the basis at 24 copies of a layer's input. Of a fresh VGG-16's convolutions
# all but one meet the tolerance in time; that one's σ is within 1e-6 of a run five times as long.
STEPS, RESTARTS, TOLERANCE = 24, 16, 1e-6


class LinearMap(Protocol):
    """A map v -> A v that is linear in v and in the weight that A is made of."""

    def input_shape(self, weight: Tensor) -> Size:
        """Shape of v."""

    def apply(self, weight: Tensor, v: Tensor) -> Tensor:
        """A v."""

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """Aᵀ u."""


@dataclass(frozen=True)
class KernelMatrix:
    """The weight reshaped to (C_out, the rest): a dense layer's map, not yet a convolution's."""

    def input_shape(self, weight: Tensor) -> Size:
        """The columns of the matrix."""
        return (weight[0].numel(),)

    def apply(self, weight: Tensor, v: Tensor) -> Tensor:
        """(C_in * k * k,) to (C_out,)."""
        return weight.flatten(1) @ v

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """(C_out,) to (C_in * k * k,)."""
        return weight.flatten(1).T @ u


@dataclass(frozen=True)
class Convolution:
    """A convolution in one or two dimensions on a zero-padded input of the given spatial size.

    `padding` is as `torch.nn.functional.pad` takes it: last axis first, before and after.
    """

    size: Size
    stride: Size
    padding: Size
    dilation: Size
    groups: int

    def input_shape(self, weight: Tensor) -> Size:
        """(1, C_in, *size)."""
        return (1, weight.shape[1] * self.groups, *self.size)

    def apply(self, weight: Tensor, v: Tensor) -> Tensor:
        """(1, C_in, *size) to (1, C_out, *size after)."""
        convolve = F.conv1d if len(self.size) == 1 else F.conv2d
        padded = F.pad(v, self.padding)
        return convolve(padded, weight, None, self.stride, 0, self.dilation, self.groups)

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """(1, C_out, *size after) to (1, C_in, *size)."""
        transpose = F.conv_transpose1d if len(self.size) == 1 else F.conv_transpose2d
        padded = [n + sum(self._pads(axis)) for axis, n in enumerate(self.size)]
        # A stride that doesn't divide the input leaves rows at its end that no window touches.
        missing = [
            n - ((u.shape[axis + 2] - 1) * s + d * (k - 1) + 1)
            for axis, (n, s, d, k) in enumerate(
                zip(padded, self.stride, self.dilation, weight.shape[2:], strict=True)
            )
        ]
        full = transpose(u, weight, None, self.stride, 0, missing, self.groups, self.dilation)
        for axis, n in enumerate(self.size):
            full = full.narrow(axis + 2, self._pads(axis)[0], n)
        return full

    def _pads(self, axis: int) -> Size:
        start = 2 * (len(self.size) - 1 - axis)
        return self.padding[start : start + 2]


def convolution(layer: nn.Conv1d | nn.Conv2d, size: Size) -> Convolution:
    """The map of `layer` on inputs of spatial size `size`."""
    padding: Size
    if isinstance(layer.padding, str):
        extra = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        sides = [(n // 2, n - n // 2) if layer.padding == "same" else (0, 0) for n in extra]
        padding = tuple(n for side in reversed(sides) for n in side)
    else:
        padding = tuple(n for side in reversed(layer.padding) for n in (side, side))
    return Convolution(size, layer.stride, padding, layer.dilation, layer.groups)


class SingularTriplet(NamedTuple):
    """SingularTriplet unit singular vectors and value of a map; `upper` is the value plus the residual."""

    u: Tensor
    v: Tensor
    sigma: float
    upper: float


@torch.no_grad()
def top_singular(linear: LinearMap, weight: Tensor) -> SingularTriplet:
    """The largest singular value σ₁ of `linear` and its vectors, converged, in float64.

        σ₁ = max over unit v of ‖A v‖₂,  by restarted Lanczos on Aᵀ A

    Plain power iteration crawls here: the top singular values of a convolution on a large image
    stand close together. It runs on the CPU because not every accelerator has float64.
    """
    weight = weight.detach().to("cpu", torch.float64)
    shape = linear.input_shape(weight)
    generator = torch.Generator().manual_seed(0)  # its own, so that nobody's random numbers shift
    v = torch.randn(math.prod(shape), generator=generator, dtype=torch.float64)
    v /= v.norm()
    for _ in range(RESTARTS):
        v, eigenvalue, residual = _lanczos(linear, weight, v, shape)
        if residual <= TOLERANCE * eigenvalue:
            break
    image = linear.apply(weight, v.view(shape))
    sigma = float(image.norm())
    # A zero weight has no leading vector: any unit u does, and a constant one is at hand.
    u = image / sigma if sigma > 0 else torch.full_like(image, image.numel() ** -0.5)
    return SingularTriplet(u, v.view(shape), sigma, math.sqrt(max(eigenvalue, 0.0) + residual))


def _lanczos(
    linear: LinearMap, weight: Tensor, start: Tensor, shape: Size
) -> tuple[Tensor, float, float]:
    """One Krylov space of Aᵀ A: its best unit vector, that one's eigenvalue, and the residual."""
    basis = start.new_empty(min(STEPS, len(start)), len(start))
    diagonal: list[float] = []
    below: list[float] = []
    vector = start
    for step in range(len(basis)):
        basis[step] = vector
        vector = linear.adjoint(weight, linear.apply(weight, vector.view(shape))).flatten()
        diagonal.append(float(vector @ basis[step]))
        for _ in range(2):  # once loses orthogonality to rounding; "twice is enough" (Parlett)
            vector = vector - basis[: step + 1].T @ (basis[: step + 1] @ vector)
        below.append(float(vector.norm()))
        if below[-1] <= 1e-14 * max(diagonal):  # the space is invariant: nothing is left to add
            break
        vector = vector / below[-1]
    used = len(diagonal)
    off = torch.diag(start.new_tensor(below[:-1]), 1)
    values, vectors = torch.linalg.eigh(torch.diag(start.new_tensor(diagonal)) + off + off.T)
    best = basis[:used].T @ vectors[:, -1]
    return best / best.norm(), float(values[-1]), below[-1] * abs(float(vectors[-1, -1]))


def input_sizes(network: Network) -> Mapping[nn.Module, list[Size]]:
    """Shape of what reaches each module, once for each time it runs on one blank input."""
    sizes: dict[nn.Module, list[Size]] = defaultdict(list)

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            sizes[module].append(tuple(inputs[0].shape))

    parameter = next(network.parameters())
    hooks = [module.register_forward_pre_hook(record) for module in network.modules()]
    try:
        with evaluating(network), torch.no_grad():
            network(parameter.new_zeros((1, *network.input_shape)))
    finally:
        for hook in hooks:
            hook.remove()
    return sizes
