"""Residual network for small images, for the paper's corollary on input distance awareness."""

from torch import Tensor, nn

from daedl.checks import require_sizes
from daedl.networks.base import Network
from daedl.networks.depths import Features, Pooling


class ResidualBlock(nn.Module):
    """ReLU(shortcut(x) + branch(x)); the branch has two 3x3 convolutions with BatchNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )
        self.activation = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, before, h, w) to (B, after, h / stride, w / stride)."""
        return self.activation(self.shortcut(maps) + self.branch(maps))  # type: ignore[no-any-return]


class ResNet18(Network):
    """CIFAR-style ResNet-18: 3x3 stem without pooling, four stages of two blocks, average pooling.

    Blocks: stem, stage1 to stage4, pool, logits; 8 x `channels` features.

    Arguments:
        in_channels: image channels.
        num_classes: C.
        image_size: image height and width.
        channels: channels of the first stage; they double with every stage.
        features: block, or several, whose pooled outputs are the features; "last" is block pool.
        pooling: see `daedl.networks.depths.pool`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        image_size: int = 32,
        channels: int = 64,
        features: Features = None,
        pooling: Pooling | None = None,
    ) -> None:
        require_sizes(
            in_channels=in_channels,
            num_classes=num_classes,
            image_size=image_size,
            channels=channels,
        )
        blocks: dict[str, nn.Module] = {
            "stem": nn.Sequential(
                nn.Conv2d(in_channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
            )
        }
        before = channels
        for stage in range(4):
            after = channels * 2**stage
            blocks[f"stage{stage + 1}"] = nn.Sequential(
                ResidualBlock(before, after, stride=1 if stage == 0 else 2),
                ResidualBlock(after, after, stride=1),
            )
            before = after
        blocks["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        blocks["logits"] = nn.Linear(before, num_classes)
        super().__init__(blocks, (in_channels, image_size, image_size), ["pool"], locals())
