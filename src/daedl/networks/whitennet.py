"""A small convolutional network that trains in few epochs on a CPU."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from daedl.checks import require_finite, require_sizes, require_whole
from daedl.networks.base import Network
from daedl.networks.depths import Features, Pooling
from daedl.outputs import evaluating

PATCH = 2  # side of a whitening filter, as in airbench
# Added to the eigenvalues, as in airbench: it bounds the gain on directions that are mostly noise.
EPSILON = 5e-4
STATISTICS_ON = 256  # images for initial statistics of BatchNorm (chosen)
MOMENTUM = 0.1  # of BatchNorm, PyTorch's default


class WhitenNet(Network):
    """A fixed whitening layer, then blocks of two 3x3 convolutions with BatchNorm, and average pooling.

    The design of airbench (Jordan, 2024, arXiv:2404.00498), with ReLU and average pooling. Each block
    halves height and width after its first convolution. Convolutions start as the identity on as many
    channels as input and output share. Blocks: whiten, block1 and so on, one for each width of
    `hidden`, pool, logits.

    The whitening filters are not trained. They start as single pixels; `daedl.fit` computes them from
    training images, unless `whiten` did before, and with them initial statistics of BatchNorm.

    Arguments:
        in_channels: channels of an image.
        num_classes: C.
        image_size: height and width of an image, at least 9 for three blocks.
        hidden: channels of each block.
        features: block, or several, whose pooled outputs are the features: by default every block before
            the last one, and pool; "last" is pool.
        pooling: see `daedl.networks.depths.pool`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        image_size: int = 32,
        hidden: Sequence[int] = (64, 128, 128),
        features: Features = None,
        pooling: Pooling | None = None,
    ) -> None:
        require_sizes(hidden, in_channels=in_channels, num_classes=num_classes)
        remedy = f"larger images, or fewer than {len(hidden)} widths of hidden, each with a pooling"
        require_whole("image_size", image_size, PATCH - 1 + 2 ** len(hidden), remedy)
        directions = in_channels * PATCH**2
        # Both signs of each direction, so that the ReLU loses neither.
        whitening = nn.Conv2d(in_channels, 2 * directions, PATCH, bias=False)
        whitening.requires_grad_(False)
        _set_filters(whitening, torch.eye(directions))
        blocks: dict[str, nn.Module] = {"whiten": nn.Sequential(whitening, nn.ReLU())}
        before = 2 * directions
        for number, width in enumerate(hidden, start=1):
            blocks[f"block{number}"] = nn.Sequential(
                _convolution(before, width),
                # Before the BatchNorm, which then has a quarter of the work.
                nn.MaxPool2d(2),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                _convolution(width, width),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            )
            before = width
        size = (image_size - PATCH + 1) // 2 ** len(hidden)
        # airbench takes the maximum. With it and one rate for all layers the evidential loss diverged;
        # with a sixteenth of the rate for the dense layer accuracy after two epochs was 77.8% against
        # 79.6% (one seed, benchmarks/results/cifar10_cpu_choice.jsonl).
        blocks["pool"] = nn.Sequential(nn.AvgPool2d(size), nn.Flatten())
        blocks["logits"] = nn.Linear(before, num_classes)
        # Early blocks keep properties of the image that the last one discards
        # (docs/when_density_fails.md).
        depths = [*(f"block{number}" for number in range(1, len(hidden))), "pool"]
        super().__init__(blocks, (in_channels, image_size, image_size), depths, locals())

    def initialize_from(self, inputs: Tensor) -> None:
        """Compute whitening filters and statistics of BatchNorm, unless the filters were computed before."""
        layer: nn.Conv2d = self.get_submodule("extractor.whiten.0")  # type: ignore[assignment]
        raw = dict(layer.named_parameters()).get("parametrizations.weight.original", layer.weight)
        # The initial filters, and no others, have a single nonzero value each.
        if bool((raw.flatten(1).count_nonzero(1) == 1).all()):
            self.whiten(inputs)
            self._start_statistics(inputs[:STATISTICS_ON])

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Compute the whitening filters from training images (B, *input_shape), as the network sees them.

        w_i = v_i / √(λ_i + EPSILON),   λ_i, v_i eigenpairs of E[p pᵀ] over all 2x2 patches p
        """
        layer: nn.Conv2d = self.get_submodule("extractor.whiten.0")  # type: ignore[assignment]
        if tuple(images.shape[1:]) != tuple(self.input_shape) or not images.is_floating_point():
            raise ValueError(
                f"images are {images.dtype} of shape {tuple(images.shape)}; expected floats "
                f"(batch, {', '.join(map(str, self.input_shape))}), preprocessed as for training"
            )
        require_finite(images, "images")
        patches = images.unfold(2, PATCH, 1).unfold(3, PATCH, 1)
        # (B, C, h, w, 2, 2) to one row of C * 2 * 2 values for each patch.
        rows = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, layer.weight[0].numel()).double()
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
        _set_filters(layer, (vectors / (values + EPSILON).sqrt()).T)

    @torch.no_grad()
    def _start_statistics(self, images: Tensor) -> None:
        """Set the running statistics of BatchNorm to those of `images`.

        Spectral normalisation scales the filters, so that variances can be 1e-4. Statistics that start at a
        variance of 1 would still be twice as large after 80 steps, and wrong in every later block.
        """
        layers = [each for each in self.modules() if isinstance(each, nn.BatchNorm2d)]
        with evaluating(self):
            for layer in layers:
                layer.train().momentum = 1.0
            self(images)
        for layer in layers:
            layer.momentum = MOMENTUM


def _set_filters(layer: nn.Conv2d, directions: Tensor) -> None:
    """Set the weight of `layer` to `directions` (D, C * 2 * 2) and their negatives."""
    filters = torch.cat((directions, -directions)).view(layer.weight.shape).to(layer.weight)
    if parametrize.is_parametrized(layer, "weight"):
        layer.weight = filters
    else:
        layer.weight.data.copy_(filters)


def _convolution(before: int, after: int) -> nn.Conv2d:
    """A 3x3 convolution that starts as the identity on its first channels."""
    layer = nn.Conv2d(before, after, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:before])
    return layer
