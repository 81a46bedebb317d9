"""What a network gives for a batch or a whole data set: features and logits from one pass."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from daedl.checks import require_finite, require_images, require_targets


class Outputs(NamedTuple):
    """Features (B, H), which the density sees, and logits (B, C), of the same images in the same pass."""

    features: Tensor
    logits: Tensor


Batch = tuple[Tensor, Tensor]


def collect(
    network: nn.Module,
    batches: Iterable[Batch],
    forward: Callable[[nn.Module, Tensor], Outputs] | None = None,
) -> tuple[Outputs, Tensor]:
    """Run `network` once over `batches` of (images, targets) in eval mode.

    Returns the features (N, H) and logits (N, C) of all images, and the targets (N,), on the CPU and
    in the order of the batches. The network's training mode is put back afterwards.
    `forward(network, images)` replaces the plain call for methods that predict in another way.
    """
    parameter = next(network.parameters())
    was_training = network.training
    network.eval()
    features, logits, targets = [], [], []
    try:
        with torch.no_grad():
            for number, (images, labels) in enumerate(batches):
                moved = images.to(parameter.device)
                require_images(moved, network.input_shape, parameter.dtype)  # type: ignore[arg-type]
                outputs = forward(network, moved) if forward else network(moved)
                require_targets(labels, outputs.logits.shape[-1], len(images))
                where = f" of batch {number}"
                require_finite(outputs.features, "features", where)
                require_finite(outputs.logits, "logits", where)
                # Under mixed precision the last layer may give half precision: keep the network's.
                features.append(outputs.features.to("cpu", parameter.dtype))
                logits.append(outputs.logits.to("cpu", parameter.dtype))
                targets.append(labels.cpu())
    finally:
        network.train(was_training)
    if not features:
        raise ValueError("the loader gave no batch; expected at least one (images, labels) pair")
    return Outputs(torch.cat(features), torch.cat(logits)), torch.cat(targets)
