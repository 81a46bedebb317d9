"""VGG-16 with batch normalisation, as in the paper's CIFAR-10 experiments."""

import math

from torch import nn

from daedl.checks import require_sizes, require_whole
from daedl.networks.base import Network
from daedl.networks.depths import Features, Pooling

# Channels of the 13 convolutions; a 2x2 max pooling follows each of the five groups (configuration D).
GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(Network):
    """13 convolutions 3x3 with BatchNorm and ReLU, then Dropout-512-ReLU twice and the logits.

    32x32 images have 512 features. Convolutions are initialised with N(0, 2 / (9 C_out)) and zero bias,
    as in the published code. Blocks: group1 to group5, flatten, dense1, dense2, logits.

    Arguments:
        in_channels: image channels.
        num_classes: C.
        image_size: image height and width, at least 32.
        dropout: dropout rate before each dense layer.
        features: block, or several, whose pooled outputs are the features; "last" is block flatten.
        pooling: see `daedl.networks.depths.pool`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        image_size: int = 32,
        dropout: float = 0.5,
        features: Features = None,
        pooling: Pooling | None = None,
    ) -> None:
        require_sizes(in_channels=in_channels, num_classes=num_classes)
        require_whole("image_size", image_size, 32, "larger images, for five 2x2 poolings")
        blocks: dict[str, nn.Module] = {}
        before = in_channels
        for number, widths in enumerate(GROUPS, start=1):
            layers: list[nn.Module] = []
            for width in widths:
                layers += [_convolution(before, width), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            blocks[f"group{number}"] = nn.Sequential(*layers, nn.MaxPool2d(2))
        blocks["flatten"] = nn.Flatten()
        flat = before * (image_size // 32) ** 2
        for i, width in ((1, flat), (2, 512)):
            blocks[f"dense{i}"] = nn.Sequential(
                nn.Dropout(dropout), nn.Linear(width, 512), nn.ReLU()
            )
        blocks["logits"] = nn.Linear(512, num_classes)
        super().__init__(blocks, (in_channels, image_size, image_size), ["flatten"], locals())


def _convolution(before: int, after: int) -> nn.Conv2d:
    layer = nn.Conv2d(before, after, 3, padding=1)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (9 * after)))
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer
