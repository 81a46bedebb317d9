"""Decodes image files and PIL images to pixels; training, prediction and the server all use `pixels_of`."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

Resize = Literal["stretch", "crop"]
MODES = {1: "L", 3: "RGB"}
# Pillow's names of the formats, with the suffixes that select files of a folder.
SUFFIXES_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "PNG": (".png",),
        "JPEG": (".jpg", ".jpeg"),
        "BMP": (".bmp",),
        "WEBP": (".webp",),
        "TIFF": (".tif", ".tiff"),
    }
)
FORMATS = tuple(SUFFIXES_OF)
MEDIA_TYPES = tuple(f"image/{name.lower()}" for name in FORMATS)
SUFFIXES = tuple(suffix for each in SUFFIXES_OF.values() for suffix in each)
EXPECTED = "PNG, JPEG, BMP, WebP or TIFF"


def pixels_of(
    opened: Image.Image,
    channels: int,
    shape: tuple[int, int] | None = None,
    resize: Resize = "stretch",
) -> Tensor:
    """Converts a PIL image to (C, H, W), uint8, resized to `shape` (H, W) unless that is None.

    - EXIF orientation is applied.
    - Transparent pixels are composited onto white.
    - 16-bit values are divided by 256. Deeper grey images and floats are rejected: their white is unknown.
    - Palettes and CMYK are converted to RGB without colour management; ICC profiles are ignored.
    - Only the first frame or page is read.
    """
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


def decode(
    picture: Path | Image.Image, channels: int, shape: tuple[int, int] | None, resize: Resize
) -> Tensor:
    """Decodes a file, or converts a PIL image; raises ValueError with the reason for a broken file."""
    if not isinstance(picture, Path):
        return pixels_of(picture, channels, shape, resize)
    try:
        with warnings.catch_warnings():
            # Pillow's warnings about damaged metadata do not name the file, and the pixels are intact.
            warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
            # Pillow only warns of possible decompression bombs.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(picture, formats=FORMATS) as opened:
                if opened.size == (1, 1):
                    raise ValueError("a single pixel")
                return pixels_of(opened, channels, shape, resize)
    # Decoders raise many types of errors for damaged images, including SyntaxError and struct.error.
    except Exception as error:
        raise ValueError(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError):
        return f"too large, more than {Image.MAX_IMAGE_PIXELS:,} pixels"
    if isinstance(error, UnidentifiedImageError):
        return "unknown format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


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
    """Divides 16-bit grey values by 256; Pillow would clip them at 255."""
    if image.mode[0] not in "IF":
        return image
    values: Any = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() >= 1 << 16:
        raise ValueError(
            f"pixels of mode {image.mode} from {values.min():g} to {values.max():g}, not 8 or 16 bits"
        )
    return Image.fromarray((values // 256).astype(np.uint8))
