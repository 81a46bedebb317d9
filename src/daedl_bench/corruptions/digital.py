"""Artefacts of resizing and compression, with Pillow."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image

from daedl_bench.corruptions.draws import Array, Draws


def pixelate(images: Array, _: Draws, *, factor: float) -> Array:
    """Reduced to the fraction `factor` of the side and enlarged again, both with a box filter."""
    side = images.shape[-1]
    small = int(side * factor)

    def resize(picture: Image.Image) -> Image.Image:
        reduced = picture.resize((small, small), Image.Resampling.BOX)
        return reduced.resize((side, side), Image.Resampling.BOX)

    return _with_pillow(images, resize)


def jpeg_compression(images: Array, _: Draws, *, quality: int) -> Array:
    """Compressed as JPEG with `quality` (1 to 95)."""

    def compress(picture: Image.Image) -> Image.Image:
        file = BytesIO()
        picture.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _with_pillow(images, compress)


def _with_pillow(images: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    levels = np.rint(255 * images).astype(np.uint8).transpose(0, 2, 3, 1)
    changed = [np.asarray(change(Image.fromarray(np.ascontiguousarray(each)))) for each in levels]
    return np.stack(changed).transpose(0, 3, 1, 2) / 255.0
