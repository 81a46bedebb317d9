"""Multilayer perceptron for vectors."""

from collections.abc import Sequence

from torch import nn

from daedl.checks import require_sizes
from daedl.networks.base import Network
from daedl.networks.depths import Features


class MLP(Network):
    """Dense layers with ReLU, in_features - hidden... - num_classes; blocks: dense1, dense2, ..., logits.

    Arguments:
        in_features: length of an input vector.
        num_classes: C.
        hidden: widths of the hidden layers.
        features: block, or several, whose outputs are the features; by default, and with "last", the
            last hidden layer.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: Sequence[int] = (64, 64),
        features: Features = None,
    ) -> None:
        if not hidden:
            raise ValueError(
                "hidden is empty; expected at least one hidden layer: use hidden=(64, 64)"
            )
        require_sizes(hidden, in_features=in_features, num_classes=num_classes)
        blocks = dense_blocks(in_features, hidden, num_classes)
        super().__init__(blocks, (in_features,), [f"dense{len(hidden)}"], locals())


def dense_blocks(in_features: int, hidden: Sequence[int], num_classes: int) -> dict[str, nn.Module]:
    """Blocks dense1, dense2, ... with ReLU, and logits."""
    widths = [in_features, *hidden]
    blocks: dict[str, nn.Module] = {
        f"dense{i}": nn.Sequential(nn.Linear(widths[i - 1], widths[i]), nn.ReLU())
        for i in range(1, len(widths))
    }
    blocks["logits"] = nn.Linear(widths[-1], num_classes)
    return blocks
