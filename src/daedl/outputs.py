"""Outputs of a network for a batch or a dataset: features and logits from one pass."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from daedl.checks import require_batch, require_finite, require_targets
from daedl.inputs import Inputs, count_rows


class Outputs(NamedTuple):
    """Features (B, H) and logits (B, C) of one forward pass.

    Methods with several passes, members or heads per input have logits (B, K, C).

    Attributes:
        parts: columns of the features per block of the network, from the first block to the last; empty
            if the features are one part.
    """

    features: Tensor
    logits: Tensor
    parts: tuple[int, ...] = ()

    @classmethod
    def of_parts(cls, parts: Sequence[Tensor], logits: Tensor) -> "Outputs":
        """Joins features (B, H_k) of several blocks."""
        joined = parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)
        return cls(joined, logits, tuple(part.shape[1] for part in parts))

    def require_finite(self, where: str = "") -> None:
        """Raises unless all values are finite in float32, which some methods convert features to."""
        if self.features.dtype == torch.float64:
            where += " in float32"
        require_finite(self.features.float(), "features", where)
        require_finite(self.logits.float(), "logits", where)

    @property
    def last_part(self) -> Tensor:
        """Features of the last block, (B, H_K)."""
        return self.features[..., -self.parts[-1] :] if self.parts else self.features


class _Evaluations:
    """Number of threads that use a network in eval mode, and the modes to restore after the last one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.modes: list[tuple[nn.Module, bool]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of a network have no users."""
        return type(self), ()


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Sets eval mode within the context, then restores the mode of each module.

    If several threads use the network, the first one sets eval mode and the last one restores the modes.
    """
    shared = vars(network).setdefault("_evaluations", _Evaluations())
    with shared.lock:
        if shared.users == 0:
            shared.modes = [(module, module.training) for module in network.modules()]
            if any(training for _, training in shared.modes):
                network.eval()
        shared.users += 1
    try:
        yield
    finally:
        with shared.lock:
            shared.users -= 1
            if shared.users == 0:
                for module, training in shared.modes:
                    module.training = training
                shared.modes = []


def collect(
    network: nn.Module,
    batches: Iterable[Any],
    prepare: Callable[[Any, str], Inputs],
    forward: Callable[[nn.Module, Inputs], Outputs] | None = None,
    name: str = "data",
    convert: Callable[[Tensor, int, str], Tensor] | None = None,
) -> tuple[Outputs, Tensor]:
    """Runs `network` once over `batches` of (inputs, targets) in eval mode.

    Returns features (N, H), logits (N, C) and targets (N,), on the CPU and in the order of the batches.

    Arguments:
        prepare: converts raw inputs to network inputs; its second argument names the batch in errors.
        forward: replaces `network(inputs)`, for methods with another forward pass.
        name: name of the data in errors.
        convert: validates and converts the targets of a number of samples; by default, class indices.
    """
    dtype = next(network.parameters()).dtype
    features, logits, targets = [], [], []
    with evaluating(network), torch.no_grad():
        for number, batch in enumerate(batches):
            where = f" of batch {number} of the {name}"
            raw, labels, _ = require_batch(batch, where)
            inputs = prepare(raw, where)
            outputs = forward(network, inputs) if forward else network(inputs)
            if convert is None:
                require_targets(labels, outputs.logits.shape[-1], count_rows(inputs), where)
                labels = labels.long()
            else:
                labels = convert(labels, count_rows(inputs), where)
            outputs.require_finite(where)
            # Under mixed precision the last layer may return half precision: use the network's dtype.
            features.append(outputs.features.to("cpu", dtype))
            logits.append(outputs.logits.to("cpu", dtype))
            targets.append(labels.cpu())
    if not features:
        raise ValueError(f"the {name} have no batch; expected at least one (inputs, labels) pair")
    return Outputs(torch.cat(features), torch.cat(logits), outputs.parts), torch.cat(targets)
