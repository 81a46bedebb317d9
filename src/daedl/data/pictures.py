"""Decodes image files and PIL images to pixels; training, prediction and the server all use `pixels_of`."""

import re
import warnings
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
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
# A JPEG is decoded with at least this multiple of the height and width of the input. Measured on six
# photographs, pixels then differ from those of a complete decoding by less than 1 of 255 on average.
REDUCING_GAP = 3
# Scans of a JPEG, each of which costs a pass over all pixels (chosen: the limit of libtiff; usual are 10).
MAX_SCANS = 100
# JPEG markers: a byte 0xFF and a code. In the data of a scan 0x00 or a restart marker follows 0xFF.
START, SCAN, END = b"\xff\xd8", b"\xff\xda", b"\xff\xd9"
MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]", re.DOTALL)
# Pixels that are converted at a time: a conversion has up to four copies of them (chosen).
STRIP = 1 << 18


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
    image = _converted(_upright(opened), MODES[channels])
    if shape is not None:
        size, bilinear = (shape[1], shape[0]), Image.Resampling.BILINEAR
        crop = resize == "crop"
        image = ImageOps.fit(image, size, bilinear) if crop else image.resize(size, bilinear)
    pixels = np.array(image, dtype=np.uint8)
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)


def open_picture(picture: Path | BytesIO) -> Image.Image:
    """Reads the header of a file or its content; raises also if a JPEG has more than `MAX_SCANS` scans."""
    opened = Image.open(picture, formats=FORMATS)
    # Pillow bounds the scans of no JPEG. Those in a TIFF are bounded by libtiff.
    if isinstance(opened, JpegImageFile):
        content = picture.read_bytes() if isinstance(picture, Path) else picture.getvalue()
        if content.count(SCAN) > MAX_SCANS and (scans := _scans(content)) > MAX_SCANS:
            opened.close()
            raise ValueError(f"{scans:,} scans, more than {MAX_SCANS}")
    return opened


def _scans(content: bytes) -> int:
    """Counts the scans of a JPEG, but not those of pictures in its metadata or behind its end."""
    place = scans = 0
    while found := MARKER.search(content, place):
        place, marker = found.end(), found[0]
        if marker == END:
            break
        scans += marker == SCAN
        if marker != START:
            place += int.from_bytes(content[place : place + 2])  # the length of the segment
    return scans


def reduce_jpeg(opened: Image.Image, shape: tuple[int, int] | None) -> None:
    """Sets a JPEG that is not loaded yet to be decoded at a half, a quarter or an eighth of its size.

    It remains at least `REDUCING_GAP` times as large as `shape` (H, W). Other formats don't support it.
    """
    if shape is not None:
        side = REDUCING_GAP * max(shape)  # of both sides, because EXIF may swap them
        opened.draft(None, (side, side))


def decode(
    picture: Path | BytesIO | Image.Image,
    channels: int,
    shape: tuple[int, int] | None,
    resize: Resize,
) -> Tensor:
    """Decodes a file or its content, or converts a PIL image; raises ValueError with the reason if broken."""
    if isinstance(picture, Image.Image):
        return pixels_of(picture, channels, shape, resize)
    try:
        with warnings.catch_warnings():
            # Pillow's warnings about damaged metadata do not name the file, and the pixels are intact.
            warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
            # Pillow only warns of possible decompression bombs.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with open_picture(picture) as opened:
                if opened.size == (1, 1):
                    raise ValueError("a single pixel")
                reduce_jpeg(opened, shape)
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
        # `exif_transpose` would also copy an upright image.
        upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
        return image if upright else ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data raise many types of errors; the pixels may be intact
        return image


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Converts a picture to `mode`, in strips, which need less memory than the whole."""
    if image.mode == mode and not image.has_transparency_data:
        return image
    converted = Image.new(mode, image.size)
    height = max(1, STRIP // image.width)
    for top in range(0, image.height, height):
        strip = image.crop((0, top, image.width, min(top + height, image.height)))
        converted.paste(_opaque(_eight_bits(strip)).convert(mode), (0, top))
    return converted


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
