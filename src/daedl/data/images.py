"""A labelled image dataset, in memory or in files."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from daedl.checks import require_targets
from daedl.data.batches import Augmentation, Batches
from daedl.data.files import Files, LabelledFiles
from daedl.data.labelled import Labelled

CHUNK = 4096  # images converted at a time, to bound the memory for floats (chosen)
# ITU-R 601, as in Pillow's conversion to grey.
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, eq=False)
class ImageSet(Labelled):
    """Images and labels.

    Attributes:
        pixels: images (N, C, H, W), uint8; or files, for folders larger than memory.
        labels: (N,), int64, non-negative.
        name: name of the dataset in errors and reports.
        split: "train", "test" or another name.
        class_names: one name per class, or None.
        made: whether the images are generated corruptions instead of published files.
    """

    pixels: Tensor | Files
    labels: Tensor
    name: str
    split: str
    class_names: tuple[str, ...] | None = None
    made: bool = False
    noun: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, Files):
            _require_images(self.pixels, self.name)
        _require_labels(self.labels, len(self.pixels), self.class_names, self.name)

    @property
    def inputs(self) -> Tensor | Files:
        """All images, in memory or as files."""
        return self.pixels

    @property
    def shown(self) -> Tensor:
        """All images, in memory."""
        return self.images

    @property
    def summary(self) -> str:
        """Size and colour."""
        channels, size, _ = self.shape
        return f"{size}x{size} pixels, {'grey' if channels == 1 else 'colour'}"

    @property
    def images(self) -> Tensor:
        """All images (N, C, H, W), uint8. Files are decoded on each access; `subset` selects some."""
        if isinstance(self.pixels, Files):
            return torch.cat([images for images, _ in self.batches()])
        return self.pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        if isinstance(self.pixels, Files):
            return self.pixels.shape
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """Returns the images at `indices` (M,), in that order."""
        chosen = torch.as_tensor(indices)
        if chosen.ndim != 1 or chosen.is_floating_point() or chosen.dtype == torch.bool:
            raise TypeError(
                f"indices are {chosen.dtype} of shape {tuple(chosen.shape)}; expected integers (M,): "
                "for a mask pass mask.nonzero().squeeze(1)"
            )
        if len(chosen) == 0 or chosen.min() < 0 or chosen.max() >= len(self):
            span = f"{int(chosen.min())} to {int(chosen.max())}" if len(chosen) else "none"
            raise ValueError(
                f"indices into {self.name} are {span}; expected at least one, from 0 to "
                f"{len(self) - 1}: select from the {len(self)} images"
            )
        chosen = chosen.long()
        pixels = self.pixels
        selected = pixels.subset(chosen) if isinstance(pixels, Files) else pixels[chosen]
        return replace(self, pixels=selected, labels=self.labels[chosen])

    def converted(self, channels: int, size: int | tuple[int, int]) -> "ImageSet":
        """Returns the images with 1 or 3 channels and of `size`, one number for square images.

        Grey is repeated over three channels; colour is converted to luma. Resizing is bilinear, with
        antialiasing. Files are converted when they are decoded.
        """
        height, width = (size, size) if isinstance(size, int) else size
        if channels not in (1, 3) or min(height, width) < 1:
            raise ValueError(
                f"channels is {channels} and size {size}; expected 1 or 3 channels and a size of at least 1"
            )
        if self.shape == (channels, height, width):
            return self
        if isinstance(self.pixels, Files):
            files = replace(self.pixels, channels=channels, size=(height, width))
            return replace(self, pixels=files)
        chunks = [
            _convert(each, channels, (height, width)) for each in torch.split(self.pixels, CHUNK)
        ]
        return replace(self, pixels=torch.cat(chunks))

    def is_grey(self) -> bool:
        """Returns whether all channels of every image are equal."""
        return all(bool((images == images[:, :1]).all()) for images, _ in self.batches())

    def digest(self) -> str:
        """Returns a digest of pixels and labels; of files, paths, sizes and modification times instead."""
        pixels = self.pixels
        content = pixels.status() if isinstance(pixels, Files) else pixels.numpy().tobytes()
        digest = hashlib.sha256(content)
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()[:16]

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns the mean and standard deviation per channel (C,) of all pixels, divided by 255."""
        # Computed from histograms, which is exact and needs no float copy of the images.
        counts = torch.zeros(self.shape[0], 256, dtype=torch.float64)
        for images, _ in self.batches():
            for channel, each in enumerate(images.transpose(0, 1).flatten(1)):
                counts[channel] += torch.bincount(each, minlength=256)
        values = torch.arange(256, dtype=torch.float64) / 255
        shares = counts / counts.sum(1, keepdim=True)
        mean = shares @ values
        std = (shares * (values - mean[:, None]) ** 2).sum(1).sqrt()
        return tuple(mean.tolist()), tuple(std.tolist())

    def dataset(self) -> TensorDataset | LabelledFiles:
        """Returns a Dataset of (image, label) pairs."""
        if isinstance(self.pixels, Files):
            return LabelledFiles(self.pixels, self.labels)
        return TensorDataset(self.pixels, self.labels)

    def batches(
        self,
        batch_size: int = 256,
        *,
        shuffle: bool = False,
        seed: int = 0,
        augment: Augmentation | None = None,
        drop_last: bool = False,
    ) -> Batches:
        """Returns batches of (images, labels); see `Batches`."""
        return Batches(
            self.pixels,
            self.labels,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            augment=augment,
            drop_last=drop_last,
        )


def _convert(images: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    if channels == 1 and images.shape[1] == 3:
        weights = torch.tensor(LUMA).view(1, 3, 1, 1)
        images = (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
    if images.shape[2:] != size:
        resized = F.interpolate(
            images.float(), size, mode="bilinear", align_corners=False, antialias=True
        )
        images = resized.round().clamp(0, 255).to(torch.uint8)
    return images.expand(-1, channels, -1, -1).contiguous()


def _require_images(images: Tensor, name: str) -> None:
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        arrived = images.dtype if isinstance(images, Tensor) else f"a {type(images).__name__}"
        raise TypeError(
            f"images of {name} are {arrived}; expected a torch.uint8 tensor with values from 0 to 255: "
            "convert with (images * 255).round().to(torch.uint8) if they are floats in [0, 1]"
        )
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(
            f"images of {name} have shape {tuple(images.shape)}; expected (N, C, H, W) with N > 0 and 1 or "
            "3 channels: use images.permute(0, 3, 1, 2) if the channels are last, or images.unsqueeze(1) "
            "for grey images without a channel axis"
        )


def _require_labels(
    labels: Tensor, number: int, class_names: tuple[str, ...] | None, name: str
) -> None:
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        arrived = labels.dtype if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
        raise TypeError(
            f"labels of {name} are {arrived}; expected a torch.int64 tensor of class indices: convert "
            "with labels.long()"
        )
    highest = int(labels.max()) if labels.numel() else 0
    num_classes = len(class_names) if class_names else max(highest + 1, 1)
    require_targets(labels, num_classes, number, f" of {name}")
