"""What a network gives for a batch or a whole data set: features and logits from one pass."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from daedl.checks import require_batch, require_finite, require_images, require_targets


class Outputs(NamedTuple):
    """Features (B, H), which the density sees, and logits (B, C), of the same images and pass.

    A method that needs several rows of logits for an image, of passes, members or heads, has (B, K, C).
    """

    features: Tensor
    logits: Tensor


Batch = tuple[Tensor, Tensor]
Data = Iterable[Batch] | Batch | Dataset[Any]
# Images of a pair of tensors that go through the network together, chosen.
_AT_ONCE = 256


def is_pair(data: Any) -> bool:
    """Whether `data` are the images and the labels of a whole set, and not batches of them."""
    pair = isinstance(data, tuple | list) and len(data) == 2
    return pair and all(isinstance(part, Tensor | np.ndarray) for part in data)


def in_batches(data: Data) -> Iterable[Batch]:
    """`data` themselves if they are batches; else the samples of a dataset, or of two tensors, in batches."""
    if isinstance(data, Dataset):
        return DataLoader(data, _AT_ONCE)
    if not is_pair(data):
        return cast(Iterable[Batch], data)
    images, labels = require_batch(data, "")
    if len(images) != len(labels):
        raise ValueError(
            f"{len(images)} images but {len(labels)} labels; expected one label for each image"
        )
    return zip(torch.split(images, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module has the mode that it had, frozen ones included."""
    modes = [(module, module.training) for module in network.modules()]
    if any(training for _, training in modes):
        network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def collect(
    network: nn.Module,
    batches: Data,
    forward: Callable[[nn.Module, Tensor], Outputs] | None = None,
    name: str = "data",
) -> tuple[Outputs, Tensor]:
    """Run `network` once over `batches` of (images, targets) in eval mode.

    Returns the features (N, H) and logits (N, C) of all images, and the targets (N,), on the CPU and
    in the order of the batches. `forward(network, images)` replaces the plain call for methods that
    predict in another way; `name` is what errors call the data.
    """
    parameter = next(network.parameters())
    features, logits, targets = [], [], []
    with evaluating(network), torch.no_grad():
        for number, batch in enumerate(in_batches(batches)):
            where = f" of batch {number} of the {name}"
            images, labels = require_batch(batch, where)
            images = images.to(parameter.device)
            require_images(images, network.input_shape, parameter.dtype, where)  # type: ignore[arg-type]
            outputs = forward(network, images) if forward else network(images)
            require_targets(labels, outputs.logits.shape[-1], len(images), where)
            require_finite(outputs.features, "features", where)
            require_finite(outputs.logits, "logits", where)
            # Under mixed precision the last layer may give half precision: keep the network's.
            features.append(outputs.features.to("cpu", parameter.dtype))
            logits.append(outputs.logits.to("cpu", parameter.dtype))
            targets.append(labels.cpu().long())
    if not features:
        raise ValueError(f"the {name} gave no batch; expected at least one (images, labels) pair")
    return Outputs(torch.cat(features), torch.cat(logits)), torch.cat(targets)
