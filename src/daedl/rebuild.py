"""Rebuilds network, method and fitted state from a model file, with work bounded by the size of the file."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from daedl import methods, networks
from daedl.description import Description, Named
from daedl.methods.base import BaseMethod
from daedl.methods.ensembled import Ensembled
from daedl.networks import Network
from daedl.outputs import Outputs, evaluating
from daedl.spectral import SpectralNorm, normalization, remove_spectral_norm, spectral_normalize

# Functions by which constructors of layers allocate memory.
ALLOCATE = (
    torch.empty,
    torch.eye,
    torch.ones,
    torch.tensor,
    torch.zeros,
    torch.zeros_like,
    Tensor.clone,
    Tensor.new_zeros,
)
# Operations that building may take, and more for each tensor and for each 100 values in the file. Networks
# and methods of this package need at most a quarter (measured). 10,000 of them take about 0.1 s.
OPERATIONS, PER_TENSOR, VALUES_PER_OPERATION = 4000, 100, 100
# Values that building may allocate, and more for each value in the file (chosen: 1 MB in float32, and up to
# 3 times the weights for heads and members).
ALLOCATED, PER_VALUE = 2**18, 4

# Largest number in arguments of a network, if its weights have fewer values (chosen: configurations of
# transformers contain lists with an entry per layer or label; a million entries take 0.1 s).
LOOP = 2**20


class Rebuilt(NamedTuple):
    """A network with its weights, its resolved method, and zero outputs of the shapes for one input."""

    network: Network
    method: BaseMethod
    outputs: Outputs


def rebuild(
    weights: Mapping[str, Tensor],
    description: Description,
    network: Network | None,
    method: BaseMethod | None,
) -> Rebuilt:
    """Builds the network for `method`, and loads `weights`.

    Arguments:
        network, method: replace those of the description; see `Classifier.load`.
    """
    if method is None:
        method = methods.rebuild(description.method.name, description.method.arguments)
    if network is None:
        values = sum(each.numel() for each in weights.values())
        _require_sizes(description.network.arguments, max(values, LOOP), "the network", values)
    with _Budget(weights):
        network = _network(description.network) if network is None else network
        network, method = _prepared(network, method, description)
        _require_equal(network, weights)
    network.load_state_dict(weights)
    return Rebuilt(network, method, _outputs(network, method))


def restore(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], method: BaseMethod
) -> nn.Module:
    """Rebuilds the fitted state of `method`."""
    values = sum(each.numel() for each in tensors.values())
    _require_sizes(settings, max(values, 1), "the fit", values)
    return method.restore(tensors, settings)


class _Budget(TorchFunctionMode):
    """Raises if building takes more operations or memory than a file with these tensors can need.

    The memory of `torch.empty`, with which layers start, is committed when it is filled, after this check.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        values = sum(each.numel() for each in tensors.values())
        self.operations = OPERATIONS + PER_TENSOR * len(tensors) + values // VALUES_PER_OPERATION
        self.values = ALLOCATED + PER_VALUE * values
        self.file = f"{len(tensors)} tensors with {values} values"

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls the function, and counts the operation and the values it allocated."""
        result = func(*args, **(kwargs or {}))
        self.operations -= 1
        if func in ALLOCATE:
            self.values -= result.numel()
        if self.operations < 0 or self.values < 0:
            raise ValueError(
                f"the description is of a larger network than {self.file}; expected the description of "
                "the network whose weights are in the file"
            )
        return result


def _network(saved: Named) -> Network:
    if saved.name not in networks.NETWORKS:
        raise ValueError(
            f"the file contains a network of the user-defined class {saved.name!r} "
            f"({saved.arguments}); expected Classifier.load(path, network=...)"
        )
    return networks.build(saved.name, **saved.arguments)


def _prepared(
    network: Network, method: BaseMethod, description: Description
) -> tuple[Network, BaseMethod]:
    """Prepares `network` as the saved one was; returns also the resolved method."""
    network.to(getattr(torch, description.dtype)).eval()
    spectral = None if description.spectral is None else SpectralNorm(**description.spectral)
    if spectral is None:
        remove_spectral_norm(network)
    elif getattr(method, "member", method).spectral == "auto":
        method = _with_norm(method, spectral)
    method = method.resolved(network)
    if isinstance(method, Ensembled) and not isinstance(network, networks.Members):
        # Copies suffice, because their weights are loaded later.
        copies = [copy.deepcopy(network) for _ in range(method.size - 1)]
        network = networks.Members([network, *copies])
    # The file decides about spectral normalisation: it may have been removed, or set by the user.
    network = _with_norm(method, None).prepare(network)
    if spectral is not None and normalization(network) is None:
        spectral_normalize(network, spectral, converge=False)
    return network, method


def _with_norm(method: BaseMethod, spectral: SpectralNorm | None) -> BaseMethod:
    """The method, or that of the members, with another spectral normalisation."""
    if isinstance(method, Ensembled):
        return replace(method, member=_with_norm(method.member, spectral))
    return replace(method, spectral=spectral)


def _require_equal(network: Network, weights: Mapping[str, Tensor]) -> None:
    """Raises unless `network` has tensors with the names, shapes and kinds of `weights`."""
    expected, arrived = _kinds(network.state_dict()), _kinds(weights)
    different = sorted(
        name for name in expected.keys() | arrived.keys() if expected.get(name) != arrived.get(name)
    )
    if different:
        name = different[0]
        raise ValueError(
            f"{len(different)} tensors differ from the description, the first is {name}: "
            f"{arrived.get(name, 'missing')} in the file; expected {expected.get(name, 'none')}"
        )


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Shape, and integer or float, of each tensor; all floats are converted to the file's dtype."""
    return {
        name: f"{'float' if each.is_floating_point() else each.dtype} {tuple(each.shape)}"
        for name, each in tensors.items()
    }


def _require_sizes(settings: Any, most: int, noun: str, values: int) -> None:
    """Raises if JSON-able settings contain an integer above `most`."""
    for number in _integers(settings):
        if abs(number) > most:
            raise ValueError(
                f"the settings of {noun} contain {number} but its tensors have {values} values; expected "
                "no larger number of classes, features, layers or neighbours"
            )


def _outputs(network: Network, method: BaseMethod) -> Outputs:
    """Zeros with the shapes of the outputs for one input."""
    with evaluating(network), torch.no_grad():
        features, logits, parts = method.forward(network, network.blank())
    return Outputs(torch.zeros(1, *features.shape[1:]), torch.zeros(1, *logits.shape[1:]), parts)


def _integers(value: Any) -> list[int]:
    """All integers in a JSON value."""
    match value:
        case bool():
            return []
        case int():
            return [value]
        case list() | dict():
            entries = value.values() if isinstance(value, dict) else value
            return [number for entry in entries for number in _integers(entry)]
    return []
