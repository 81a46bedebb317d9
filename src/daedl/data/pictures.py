"""Converts PIL images to pixel tensors: orientation, transparency, depth, channels and size."""

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from daedl.data.preprocess import Resize

MODES = {1: "L", 3: "RGB"}


def pixels_of(
    opened: Image.Image,
    channels: int,
    shape: tuple[int, int] | None = None,
    resize: Resize = "stretch",
) -> Tensor:
    """Converts a picture to (C, H, W), uint8, resized to `shape` (H, W) unless that is None."""
    if channels not in MODES:
        raise ValueError(
            f"pictures can't be converted to {channels} channels; expected 1 or 3: pass arrays instead"
        )
    image = _opaque(_eight_bits(_upright(opened))).convert(MODES[channels])
    if shape is not None:
        size, bilinear = (shape[1], shape[0]), Image.Resampling.BILINEAR
        crop = resize == "crop"
        image = ImageOps.fit(image, size, bilinear) if crop else image.resize(size, bilinear)
    pixels = np.array(image, dtype=np.uint8)
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)


def _upright(image: Image.Image) -> Image.Image:
    """Applies the EXIF orientation."""
    image.load()  # raises if the file is damaged
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data raise many types of errors; the pixels may be intact
        return image


def _opaque(image: Image.Image) -> Image.Image:
    """Composites a transparent picture onto white."""
    if not image.has_transparency_data:
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scales 16-bit grey values, which Pillow would clip at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
