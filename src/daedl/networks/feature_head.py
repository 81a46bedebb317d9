"""Dense layers on feature vectors that were computed elsewhere."""

from collections.abc import Sequence
from types import MappingProxyType

from torch import Tensor, nn

from daedl.checks import require_sizes
from daedl.networks.base import Network
from daedl.networks.depths import Features
from daedl.networks.mlp import dense_blocks


class FeatureHead(Network):
    """The input vector is the features; dense layers map it to logits. Without `hidden` it is linear.

    For embeddings and outputs of a frozen backbone. Blocks: input, dense1, dense2, ..., logits.

    Arguments:
        in_features: length of an input vector.
        num_classes: C.
        hidden: widths of the hidden layers.
        features: block, or several, whose outputs are the features; by default, and with "last", the
            input.
        parts: lengths of the parts of an input vector from several blocks of a network, of which the dense
            layers see the last.
    """

    since = MappingProxyType({**Network.since, "parts": []})

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: Sequence[int] = (),
        features: Features = None,
        parts: Sequence[int] = (),
    ) -> None:
        require_sizes(hidden, in_features=in_features, num_classes=num_classes)
        if parts and sum(parts) != in_features:
            raise ValueError(
                f"the parts {list(parts)} have {sum(parts)} columns in total; expected in_features, "
                f"which is {in_features}: pass the `parts` of the network that computed the vectors"
            )
        blocks: dict[str, nn.Module] = {"input": nn.Identity()}
        if parts:
            blocks["select"] = LastColumns(parts[-1])
        blocks |= dense_blocks(parts[-1] if parts else in_features, hidden, num_classes)
        super().__init__(blocks, (in_features,), ["input"], locals())
        if parts and self.depths == ("input",):
            self.parts = tuple(parts)


class LastColumns(nn.Module):
    """The last `width` columns of a matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, rows: Tensor) -> Tensor:
        """Map (B, H) to (B, width)."""
        return rows[:, -self.width :]
