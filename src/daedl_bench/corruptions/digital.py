"""What files and screens do to images, with Pillow."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from daedl_bench.corruptions.draws import Array, Draws


def pixelate(images: Array, draws: Draws, *, factor: float) -> Array:  # noqa: ARG001
    """Shrunk to the share `factor` of the side and enlarged again, both with a box filter."""
    side = images.shape[-1]
    small = int(side * factor)
    pictures = [
        picture.resize((small, small), Image.Resampling.BOX).resize(
            (side, side), Image.Resampling.BOX
        )
        for picture in _pictures(images)
    ]
    return _array(pictures)


def jpeg_compression(images: Array, draws: Draws, *, quality: int) -> Array:  # noqa: ARG001
    """Written as a JPEG file of `quality` (1 to 95) and read again."""
    pictures = []
    for picture in _pictures(images):
        file = BytesIO()
        picture.save(file, "JPEG", quality=quality)
        pictures.append(Image.open(file))
    return _array(pictures)


def _pictures(images: Array) -> list[Image.Image]:
    levels: npt.NDArray[np.uint8] = np.rint(255 * images).astype(np.uint8).transpose(0, 2, 3, 1)
    return [Image.fromarray(each) for each in np.ascontiguousarray(levels)]


def _array(pictures: Sequence[Image.Image]) -> Array:
    return np.stack([np.asarray(each) for each in pictures]).transpose(0, 3, 1, 2) / 255.0
