"""Matrix-free linear maps of layers, and their largest singular values."""

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

# Chosen: 24 steps limit the basis to 24 copies of the layer's input. With a newly initialised VGG-16 all
# convolutions but one reach the tolerance; σ of that one is within 1e-6 of a run five times as long.
STEPS, RESTARTS, TOLERANCE = 24, 16, 1e-6


class LinearMap(Protocol):
    """A map v -> A v that is linear in v and in the weight that defines A."""

    def input_shape(self, weight: Tensor) -> Size:
        """Shape of v."""

    def apply(self, weight: Tensor, v: Tensor) -> Tensor:
        """A v."""

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """Aᵀ u."""


@dataclass(frozen=True)
class KernelMatrix:
    """The weight reshaped to (C_out, rest): the map of a dense layer, but not of a convolution."""

    def input_shape(self, weight: Tensor) -> Size:
        """Number of columns of the matrix."""
        return (weight[0].numel(),)

    def apply(self, weight: Tensor, v: Tensor) -> Tensor:
        """Map (C_in * k * k,) to (C_out,)."""
        return weight.flatten(1) @ v

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """Map (C_out,) to (C_in * k * k,)."""
        return weight.flatten(1).T @ u


@dataclass(frozen=True)
class Convolution:
    """A 1D or 2D convolution on a zero-padded input of the given spatial size.

    `padding` has the format of `torch.nn.functional.pad`: last axis first, before and after.
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
        """Map (1, C_in, *size) to (1, C_out, *output size)."""
        convolve = F.conv1d if len(self.size) == 1 else F.conv2d
        padded = F.pad(v, self.padding)
        return convolve(padded, weight, None, self.stride, 0, self.dilation, self.groups)

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        """Map (1, C_out, *output size) to (1, C_in, *size)."""
        transpose = F.conv_transpose1d if len(self.size) == 1 else F.conv_transpose2d
        padded = [n + sum(self._pads(axis)) for axis, n in enumerate(self.size)]
        # If the stride doesn't divide the input size, no window covers the last rows.
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
    """Linear map of `layer` on inputs of spatial size `size`."""
    padding: Size
    if isinstance(layer.padding, str):
        extra = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        sides = [(n // 2, n - n // 2) if layer.padding == "same" else (0, 0) for n in extra]
        padding = tuple(n for side in reversed(sides) for n in side)
    else:
        padding = tuple(n for side in reversed(layer.padding) for n in (side, side))
    return Convolution(size, layer.stride, padding, layer.dilation, layer.groups)


class SingularTriplet(NamedTuple):
    """Largest singular value of a map with its unit vectors; `upper` is an upper bound of sigma."""

    u: Tensor
    v: Tensor
    sigma: float
    upper: float


@torch.no_grad()
def top_singular(linear: LinearMap, weight: Tensor) -> SingularTriplet:
    """Converged largest singular value σ₁ of `linear` and its vectors, in float64.

        σ₁ = max over unit v of ‖A v‖₂,  by restarted Lanczos on Aᵀ A

    Power iteration would converge slowly, because the top singular values of a convolution on a large
    image are close together. Runs on the CPU, as not every accelerator supports float64.
    """
    weight = weight.detach().to("cpu", torch.float64)
    shape = linear.input_shape(weight)
    generator = torch.Generator().manual_seed(0)  # the global random state is unaffected
    v = torch.randn(math.prod(shape), generator=generator, dtype=torch.float64)
    v /= v.norm()
    for _ in range(RESTARTS):
        v, eigenvalue, residual = _lanczos(linear, weight, v, shape)
        if residual <= TOLERANCE * eigenvalue:
            break
    image = linear.apply(weight, v.view(shape))
    sigma = float(image.norm())
    # For a zero weight any unit vector u is valid; a constant one is used.
    u = image / sigma if sigma > 0 else torch.full_like(image, image.numel() ** -0.5)
    return SingularTriplet(u, v.view(shape), sigma, math.sqrt(max(eigenvalue, 0.0) + residual))


def _lanczos(
    linear: LinearMap, weight: Tensor, start: Tensor, shape: Size
) -> tuple[Tensor, float, float]:
    """One Krylov space of Aᵀ A: the leading Ritz vector, its eigenvalue, and the residual."""
    basis = start.new_empty(min(STEPS, len(start)), len(start))
    diagonal: list[float] = []
    below: list[float] = []
    vector = start
    for step in range(len(basis)):
        basis[step] = vector
        vector = linear.adjoint(weight, linear.apply(weight, vector.view(shape))).flatten()
        diagonal.append(float(vector @ basis[step]))
        for _ in range(2):  # one pass loses orthogonality to rounding; "twice is enough" (Parlett)
            vector = vector - basis[: step + 1].T @ (basis[: step + 1] @ vector)
        below.append(float(vector.norm()))
        if below[-1] <= 1e-14 * max(diagonal):  # the space is invariant
            break
        vector = vector / below[-1]
    used = len(diagonal)
    off = torch.diag(start.new_tensor(below[:-1]), 1)
    values, vectors = torch.linalg.eigh(torch.diag(start.new_tensor(diagonal)) + off + off.T)
    best = basis[:used].T @ vectors[:, -1]
    return best / best.norm(), float(values[-1]), below[-1] * abs(float(vectors[-1, -1]))


def input_sizes(network: Network) -> Mapping[nn.Module, list[Size]]:
    """Input shapes of each module on `network.blank()`, one per call."""
    sizes: dict[nn.Module, list[Size]] = defaultdict(list)

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            sizes[module].append(tuple(inputs[0].shape))

    hooks = [module.register_forward_pre_hook(record) for module in network.modules()]
    try:
        with evaluating(network), torch.no_grad():
            network(network.blank())
    finally:
        for hook in hooks:
            hook.remove()
    return sizes
