"""Dense layers on feature vectors that were computed elsewhere."""

from collections.abc import Sequence

from torch import nn

from daedl.checks import require_sizes
from daedl.networks.base import Network
from daedl.networks.mlp import dense_blocks


class FeatureHead(Network):
    """The input vector is the features; dense layers map it to logits. Without `hidden` it is linear.

    For embeddings and outputs of a frozen backbone. Blocks: input, dense1, dense2, ..., logits.

    Arguments:
        in_features: length of an input vector.
        num_classes: C.
        hidden: widths of the hidden layers.
        features: block whose output is the features.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: Sequence[int] = (),
        features: str = "input",
    ) -> None:
        require_sizes(hidden, in_features=in_features, num_classes=num_classes)
        blocks = {"input": nn.Identity(), **dense_blocks(in_features, hidden, num_classes)}
        super().__init__(
            blocks,
            features,
            (in_features,),
            num_classes,
            {
                "in_features": in_features,
                "num_classes": num_classes,
                "hidden": list(hidden),
                "features": features,
            },
        )
