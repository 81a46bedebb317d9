"""An image dataset in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from daedl.checks import require_targets
from daedl.data.batches import Augmentation, Batches

CHUNK = 4096  # images converted at a time, to bound the memory for floats (chosen)
# ITU-R 601, as in Pillow's conversion to grey.
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and labels in memory.

    Attributes:
        images: (N, C, H, W), uint8.
        labels: (N,), int64, non-negative.
        name: name of the dataset in errors and reports.
        split: "train", "test" or another name.
        class_names: one name per class, or None.
        made: whether the images are generated corruptions instead of published files.
    """

    images: Tensor
    labels: Tensor
    name: str
    split: str
    class_names: tuple[str, ...] | None = None
    made: bool = False

    def __post_init__(self) -> None:
        _require_images(self.images, self.name)
        _require_labels(self.labels, len(self.images), self.class_names, self.name)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @property
    def num_classes(self) -> int:
        """The number of class names; without names, one more than the largest label."""
        return len(self.class_names) if self.class_names else int(self.labels.max()) + 1

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
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])

    def random_split(self, number: int, seed: int) -> tuple["ImageSet", "ImageSet"]:
        """Returns `number` images selected at random with `seed`, and the remaining images."""
        if not 0 < number < len(self):
            raise ValueError(
                f"cannot split {number} images off the {len(self)} of {self.name}; expected 1 to "
                f"{len(self) - 1}, so that neither part is empty"
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.subset(order[:number]), self.subset(order[number:])

    def converted(self, channels: int, size: int | tuple[int, int]) -> "ImageSet":
        """Returns the images with 1 or 3 channels and of `size`, one number for square images.

        Grey is repeated over three channels; colour is converted to luma. Resizing is bilinear, with
        antialiasing.
        """
        height, width = (size, size) if isinstance(size, int) else size
        if channels not in (1, 3) or min(height, width) < 1:
            raise ValueError(
                f"channels is {channels} and size {size}; expected 1 or 3 channels and a size of at least 1"
            )
        if self.shape == (channels, height, width):
            return self
        chunks = [
            _convert(chunk, channels, (height, width)) for chunk in torch.split(self.images, CHUNK)
        ]
        return replace(self, images=torch.cat(chunks))

    def mean_and_std(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns the mean and standard deviation per channel (C,) of all pixels, divided by 255."""
        values = torch.arange(256, dtype=torch.float64) / 255
        means, stds = [], []
        for channel in range(self.shape[0]):
            # Computed from a histogram, which is exact and needs no float copy of the images.
            counts = torch.bincount(self.images[:, channel].reshape(-1), minlength=256).double()
            mean = (counts * values).sum() / counts.sum()
            means.append(float(mean))
            stds.append(float(((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt()))
        return tuple(means), tuple(stds)

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
            self.images,
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
