"""PNG and JPEG images to pixels, as `daedl predict` reads them from files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from daedl.data.folder import FORMATS, pixels_of
from daedl.serving.errors import RequestError


def read_pictures(files: Sequence[bytes], shape: Sequence[int], max_pixels: int) -> Tensor:
    """The images (N, C, H, W), uint8, of PNG or JPEG `files`, made to fit `shape` (C, H, W).

    `max_pixels` are those of all files together. They are looked up in the headers: nothing is
    decoded before all are known to be within the limit.
    """
    numbered = [(BytesIO(data), _called(i, len(files))) for i, data in enumerate(files)]
    try:
        total = sum(_pixels(file, name) for file, name in numbered)
    # Pillow's own limit; of what is above it, it only warns up to twice as much.
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise _too_many("far too many", max_pixels) from error
    if total > max_pixels:
        raise _too_many(f"{total:,}", max_pixels)
    return torch.stack([_read(file, name, shape) for file, name in numbered])


def _called(index: int, number: int) -> str:
    return "the image" if number == 1 else f"image {index + 1} of {number}"


def _pixels(file: BytesIO, name: str) -> int:
    """Pixels that the header announces."""
    with _readable(name), Image.open(file, formats=FORMATS) as opened:
        return opened.width * opened.height


def _read(file: BytesIO, name: str, shape: Sequence[int]) -> Tensor:
    """The image (C, H, W), uint8."""
    channels, height, width = shape
    file.seek(0)
    with _readable(name), Image.open(file, formats=FORMATS) as opened:
        return pixels_of(opened, channels, (height, width))


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise
    except UnidentifiedImageError as error:
        raise RequestError(
            400, f"{name} is neither PNG nor JPEG; expected one of them: convert it"
        ) from error
    # Decoders fail on damaged images in many ways, SyntaxError and struct.error among them.
    except Exception as error:
        raise RequestError(
            400,
            f"{name} can't be read ({str(error)[:200]}); expected a whole PNG or JPEG: export it again",
        ) from error


def _too_many(pixels: str, limit: int) -> RequestError:
    return RequestError(
        413,
        f"the request's images have {pixels} pixels; expected at most {limit:,} in all: make them smaller",
    )
