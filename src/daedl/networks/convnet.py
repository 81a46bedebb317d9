"""Small convolutional network of the paper's MNIST experiments."""

from collections.abc import Sequence

from torch import nn

from daedl.checks import require_sizes, require_whole
from daedl.networks.base import Network
from daedl.networks.depths import Features, Pooling
from daedl.networks.mlp import dense_blocks


class ConvNet(Network):
    """Three blocks of 5x5 convolution, 2x2 max pooling and ReLU, then dense layers 64-64-64-C.

    28x28 images have 576 features. The paper's text states three dense layers; its code has four, as
    here. Blocks: conv1, conv2, conv3, flatten, dense1, dense2, dense3, logits.

    Arguments:
        in_channels: image channels.
        num_classes: C.
        image_size: image height and width, at least 8.
        channels: output channels of every convolution.
        hidden: widths of the dense layers before the logits.
        features: block, or several, whose pooled outputs are the features; "last" is block flatten.
        pooling: see `daedl.networks.depths.pool`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        image_size: int = 28,
        channels: int = 64,
        hidden: Sequence[int] = (64, 64, 64),
        features: Features = None,
        pooling: Pooling | None = None,
    ) -> None:
        require_sizes(hidden, in_channels=in_channels, num_classes=num_classes, channels=channels)
        require_whole("image_size", image_size, 8, "larger images, for three 2x2 poolings")
        blocks: dict[str, nn.Module] = {
            f"conv{i}": nn.Sequential(
                nn.Conv2d(in_channels if i == 1 else channels, channels, 5, padding=2),
                # Equivalent to ReLU before pooling, as both are monotone, at a quarter of the cost.
                nn.MaxPool2d(2),
                nn.ReLU(),
            )
            for i in (1, 2, 3)
        }
        blocks["flatten"] = nn.Flatten()
        blocks |= dense_blocks(channels * (image_size // 8) ** 2, hidden, num_classes)
        super().__init__(blocks, (in_channels, image_size, image_size), ["flatten"], locals())
