"""Scales and normalises images to network inputs; nothing else does."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from PIL.Image import Image
from torch import Tensor

from daedl.checks import Number, require_finite, require_whole
from daedl.data.kind import InputKind
from daedl.data.pictures import Resize, pixels_of
from daedl.inputs import as_input

if TYPE_CHECKING:
    from daedl.data.images import ImageSet

WHITE = 255.0  # the largest 8-bit pixel
# Relative tolerance of the range of floats, which interpolation may exceed (chosen).
SLACK = 1e-3
# Largest scale, mean and deviation; the smallest scale and deviation are its inverse (chosen: far from those
# of 16-bit pixels, and inputs remain within the range of float32).
LARGEST = 1e6


@dataclass(frozen=True)
class Preprocess(InputKind):
    """Converts images to network inputs: x = (u / scale − mean) / std for 8-bit pixels u.

    Float images must already be divided by `scale`, so that they range from 0 to 255 / scale.

    Attributes:
        channels: 1 for grey, 3 for colour; other numbers are valid for arrays, not for pictures.
        size: height and width of an input; one number for square inputs.
        resize: how pictures of another size are resized: "stretch" ignores the aspect ratio, "crop" scales
            the shorter side and crops the longer one. Arrays are never resized.
        scale: divisor of 8-bit pixels.
        mean, std: mean and standard deviation of scaled pixels, per channel.
    """

    channels: int
    size: int | tuple[int, int]
    resize: Resize = "stretch"
    scale: float = WHITE
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    kind: ClassVar[str] = "image"
    noun: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        object.__setattr__(self, "size", size)
        require_whole("channels", self.channels, 1, "1 for grey or 3 for colour images")
        for length in size:
            require_whole("size", length, 1, "the height and width of the network's input")
        if len(size) != 2 or self.resize not in get_args(Resize):
            raise ValueError(
                f"size is {size} and resize {self.resize!r}; expected a height and a width, and "
                f"{' or '.join(map(repr, get_args(Resize)))}"
            )
        Number(1 / LARGEST, limit=LARGEST).require("scale", self.scale, "255")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _per_channel(getattr(self, name), self.channels, name))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of one input."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return self.channels, height, width

    @classmethod
    def for_shape(cls, input_shape: Sequence[int]) -> "Preprocess | None":
        """Returns the default for `input_shape`; None unless it is an image with 1 or 3 channels."""
        match tuple(input_shape):
            case (1 | 3 as channels, height, width):
                return cls(channels, (height, width))
        return None

    def __call__(self, images: Tensor, dtype: torch.dtype, where: str = "") -> Tensor:
        """Converts images (B, C, H, W), uint8 or float, to inputs of the same shape with type `dtype`."""
        if images.dtype == torch.uint8:
            inputs = images.to(dtype).div_(self.scale)
        else:
            self._require_range(images, where)
            inputs = images.to(dtype)
        if self.mean is not None:
            inputs = inputs - _channelwise(self.mean, inputs)
        if self.std is not None:
            inputs = inputs / _channelwise(self.std, inputs)
        return inputs

    def prepare(self, images: Any, like: Tensor, where: str = "") -> Tensor:
        """Converts one or more images to network inputs (B, C, H, W) with the device and dtype of `like`."""
        tensor = as_input(images, self.shape, where).to(like.device)
        if tensor.is_floating_point():
            tensor = tensor.to(like.dtype)
            require_finite(tensor, "inputs", where)
        return self(tensor, like.dtype, where)

    def noise(self, like: Tensor) -> Tensor:
        """Returns network inputs of uniformly random pixels, with the shape, device and dtype of `like`."""
        return self(torch.rand_like(like) * (WHITE / self.scale), like.dtype)

    def open(self, data: Any) -> Any:
        """Returns `Files` for PIL images and paths of pictures or folders; other `data` unchanged."""
        from daedl.data.files import Files  # noqa: PLC0415 (it imports this module)
        from daedl.data.folder import expand_folders  # noqa: PLC0415

        pictures = expand_folders(data)
        return data if pictures is None else Files.of(pictures, self)

    def read(
        self,
        path: Path,
        class_names: Sequence[str],
        labelled: bool = True,
        skip_broken: bool = False,
    ) -> "ImageSet":
        """Reads a folder of images or a .npz file; see `daedl.data.read.read_for`."""
        from daedl.data.read import read_for  # noqa: PLC0415 (it imports this module)

        return read_for(path, self, class_names, labelled, skip_broken)

    def picture(self, image: Image) -> Tensor:
        """Converts a PIL image of any size and mode to (C, H, W), uint8."""
        return pixels_of(image, self.channels, self.shape[1:], self.resize)

    def settings(self) -> dict[str, Any]:
        """Returns the constructor arguments; JSON-able."""
        return asdict(self)

    def _require_range(self, images: Tensor, where: str) -> None:
        """Raises unless float images range from 0 to 255 / scale."""
        if torch.compiler.is_compiling() or images.numel() == 0:
            return
        low, high = (float(each) for each in images.aminmax())
        top = WHITE / self.scale
        if low >= -SLACK * top and high <= (1 + SLACK) * top:
            return
        if high > top and low >= 0:
            remedy = f"divide them by {high / top:.3g}, or pass 8-bit pixels as uint8"
        else:
            remedy = (
                "pass images without normalisation and pass mean and std to Preprocess(...), or build the "
                "classifier with preprocess=None if its inputs are already normalised"
            )
        raise ValueError(
            f"images{where} range from {low:.3g} to {high:.3g}; expected floats from 0 to {top:.3g}: {remedy}"
        )


def _per_channel(
    values: Sequence[float] | None, channels: int, name: str
) -> tuple[float, ...] | None:
    if values is None:
        return None
    checked = tuple(float(value) for value in values)
    if len(checked) != channels:
        raise ValueError(
            f"{name} has {len(checked)} values for {channels} channel(s); expected one per channel: "
            "compute them with ImageSet.mean_and_std of the training images"
        )
    valid = Number(1 / LARGEST if name == "std" else -LARGEST, limit=LARGEST)
    for value in checked:
        valid.require(f"{name} of a channel", value, "that of the training images")
    return checked


def _channelwise(values: tuple[float, ...], inputs: Tensor) -> Tensor:
    return torch.tensor(values, dtype=inputs.dtype, device=inputs.device).view(-1, 1, 1)
