"""Request bodies to network inputs: images, JSON, .npy files and forms."""

import json
import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.lib import format as npy_format
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from torch import Tensor

from daedl.data import Preprocess, TextPreprocess
from daedl.data.pictures import EXPECTED, MEDIA_TYPES, open_picture, reduce_jpeg
from daedl.data.preprocess import WHITE
from daedl.model import Model
from daedl.serving.config import ServerConfig
from daedl.serving.texts import JSON, TextSpec

NPY = "application/octet-stream"
FORM = "multipart/form-data"

# Bytes of a .npy header; numpy writes 118 for the usual dtypes (chosen).
MAX_NPY_HEADER = 1024
# Lists in JSON beyond those of an array of the right shape, so that small mistakes are explained (chosen).
SLACK = 10_000
# Pixels of a request above which it is decoded alone. Decoding takes up to 8 bytes of memory per pixel, 16
# for WebP (chosen: more than most images of web pages have, and less than most photographs).
LARGE = 2_000_000


@dataclass(frozen=True)
class InputSpec:
    """Shape and dtype of one network input, and the preprocessing of images."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    preprocess: Preprocess | None = None
    is_text: ClassVar[bool] = False

    @classmethod
    def of(cls, model: Model[Any]) -> "InputSpec | TextSpec":
        """Return the specification of the inputs of `model`."""
        if isinstance(model.preprocess, TextPreprocess):
            return TextSpec()
        if not model.network.input_shape:
            raise ValueError(
                "the model takes inputs without a fixed shape and has no preprocessing; expected images, "
                "texts or arrays of one shape: give it a daedl.data.TextPreprocess"
            )
        # Features are standardised before they are rounded.
        raw = model.scaling is not None and model.scaling.features is not None
        dtype = torch.float64 if raw else next(model.network.parameters()).dtype
        preprocess = cast(Preprocess | None, model.preprocess)
        return cls(tuple(model.network.input_shape), dtype, preprocess)

    def example(self) -> Tensor:
        """Return one input."""
        return torch.zeros(1, *self.shape, dtype=self.dtype)

    def parse(
        self, media_type: str, uploads: Sequence[bytes], config: ServerConfig, *, many: bool
    ) -> "Tensor | Pictures":
        """Convert uploads to inputs (N, *shape), where N is 1 unless `many`.

        Arrays must have the shape of an input; pictures are resized to it. Pictures with more than `LARGE`
        pixels are returned as they are, for the caller to decode one request at a time.
        """
        if media_type in (JSON, NPY):
            (body,) = uploads
            if media_type == JSON:
                _require_lists(body, self.shape, config.max_images if many else 1)
                values, white = _parse_json(body, "images" if many else "array")
            else:
                values, white = _parse_npy(body)
            return _arrays_to_inputs(values, white, self, config.max_images if many else None)
        if self.preprocess is None:
            raise HTTPException(
                415,
                f"the model has inputs of shape {self.shape} without preprocessing of images; expected an "
                f"array: send it as {JSON} or {NPY}",
            )
        pictures = Pictures.open(uploads, self.preprocess, self.dtype, config.max_pixels)
        return pictures if pictures.pixels > LARGE else pictures.decode()

    def media_types(self, many: bool) -> tuple[str, ...]:
        """Return the accepted media types: a picture is a single image."""
        return (JSON, NPY, FORM) if many else (*MEDIA_TYPES, JSON, NPY, FORM)

    def request_body(self, many: bool, max_images: int) -> Mapping[str, Any]:
        """Return the OpenAPI schema of a body by media type."""
        binary = {"type": "string", "format": "binary"}
        key = "images" if many else "array"
        numbers = {"type": "array", "items": {}, "description": "Nested lists; channels first."}
        uploads = {"type": "array", "items": binary, "minItems": 1, "maxItems": max_images}
        objects = {
            JSON: ({key: numbers, "max": {"enum": [1, 255], "default": 1}}, key),
            FORM: ({"image": uploads}, "image"),
        }
        schemas: dict[str, dict[str, Any]] = {
            media_type: {"type": "object", "properties": properties, "required": [required]}
            for media_type, (properties, required) in objects.items()
        }
        return {each: schemas.get(each, binary) for each in self.media_types(many)}

    @property
    def is_image(self) -> bool:
        """Whether the model reads images: inputs without preprocessing are prepared by the client."""
        return self.preprocess is not None

    @property
    def array_shapes(self) -> list[tuple[int, ...]]:
        """Accepted shapes of one array: a grey image may omit its channel axis."""
        grey = self.is_image and self.shape[0] == 1
        return [self.shape, self.shape[1:]] if grey else [self.shape]


def require_media_type(request: Request, allowed: Sequence[str]) -> str:
    """Return the media type of the body, or raise if it isn't `allowed`."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise HTTPException(
            415, f"the Content-Encoding is {encoding[:40]!r}; expected none: disable compression"
        )
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in allowed:
        raise HTTPException(
            415,
            f"the Content-Type is {media_type[:60]!r}; expected {', '.join(allowed)}: set it to the type "
            "of the body",
        )
    return media_type


async def read_uploads(request: Request, media_type: str, max_images: int) -> list[bytes]:
    """Return the files of a form, or the body as a single upload."""
    is_form = media_type == FORM
    uploads = await _read_form(request, max_images) if is_form else [await request.body()]
    if not all(uploads):
        raise HTTPException(400, "the body or a file is empty; expected an image or an array")
    return uploads


# ---- pictures


@dataclass(frozen=True)
class Pictures:
    """Images of a request by name, of which only the headers are read yet."""

    images: dict[str, Image.Image]
    preprocess: Preprocess
    dtype: torch.dtype

    @classmethod
    def open(
        cls, uploads: Sequence[bytes], preprocess: Preprocess, dtype: torch.dtype, max_pixels: int
    ) -> "Pictures":
        """Read the headers, and raise if all images together have more than `max_pixels`."""
        images: dict[str, Image.Image] = {}
        for number, upload in enumerate(uploads, start=1):
            name = f"image {number} of {len(uploads)}"
            with _image_errors(name):
                images[name] = open_picture(BytesIO(upload))
        pictures = cls(images, preprocess, dtype)
        if pictures.pixels > max_pixels:
            raise HTTPException(
                413,
                f"the images of the request have {pictures.pixels:,} pixels; expected at most "
                f"{max_pixels:,} in total: reduce their size",
            )
        return pictures

    @property
    def pixels(self) -> int:
        """Pixels of all images together."""
        return sum(image.width * image.height for image in self.images.values())

    def decode(self) -> Tensor:
        """Return inputs (N, *shape), in order."""
        pixels = []
        for name, image in self.images.items():
            with _image_errors(name):
                reduce_jpeg(image, self.preprocess.shape[1:])
                image.load()
            pixels.append(self.preprocess.picture(image))
            image.close()  # frees its memory before the next one is decoded
        return torch.stack(pixels).to(self.dtype) / self.preprocess.scale


@contextmanager
def _image_errors(name: str) -> Iterator[None]:
    try:
        yield
    # Decoders fail on damaged images in many ways, SyntaxError and struct.error among them. Pillow
    # rejects images above a limit of its own when it opens them.
    except Exception as error:
        too_large = isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning)
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else str(error)[:200]
        raise HTTPException(
            413 if too_large else 400,
            f"{name} can't be decoded ({reason}); expected a complete {EXPECTED} image: export it again",
        ) from error


# ---- arrays


def _arrays_to_inputs(
    values: np.ndarray[Any, Any], white: float, spec: InputSpec, max_images: int | None
) -> Tensor:
    """Convert one array, or several if `max_images` is set, to inputs (N, *shape).

    Values of images are within 0 and `white`; other inputs accept any finite values.
    """
    many = max_images is not None
    if (values.shape[1:] if many else values.shape) not in spec.array_shapes or values.size == 0:
        shapes = [("N", *shape) if many else shape for shape in spec.array_shapes]
        expected = " or ".join(f"({', '.join(map(str, shape))})" for shape in shapes)
        raise HTTPException(
            422, f"the array has shape {values.shape}; expected {expected}: channels come first"
        )
    if max_images is not None and len(values) > max_images:
        raise HTTPException(
            413,
            f"the request has {len(values):,} images; expected at most {max_images}: send fewer per request",
        )
    low, high = float(values.min()), float(values.max())
    in_range = 0 <= low <= high <= white if spec.is_image else math.isfinite(low + high)
    if not in_range:
        expected = f"0 to {white:g}" if spec.is_image else "finite numbers"
        bytes_sent = spec.is_image and white == 1 and 0 <= low <= high <= 255
        hint = ': divide by 255, or set "max": 255 in JSON' if bytes_sent else ""
        raise HTTPException(
            422, f"values range from {low:g} to {high:g}; expected {expected}{hint}"
        )
    inputs = torch.from_numpy(values.astype(np.float64)).reshape(-1, *spec.shape)
    if spec.preprocess is not None:
        inputs = inputs * (WHITE / white / spec.preprocess.scale)
    return inputs.to(spec.dtype)


def _require_lists(body: bytes, shape: tuple[int, ...], number: int) -> None:
    """Raise if the JSON has more lists than `number` arrays of `shape`: each takes 56 bytes or more."""
    rows = sum(math.prod(shape[:axes]) for axes in range(len(shape)))  # lists of one array
    if (lists := body.count(b"[")) > (most := SLACK + number * rows):
        raise HTTPException(
            413,
            f"the JSON has {lists:,} lists; expected at most {most:,}, more than those of {number} arrays "
            f"of shape {shape} need: send fewer or smaller arrays",
        )


def _parse_json(body: bytes, key: str) -> tuple[np.ndarray[Any, Any], float]:
    """Return the values of {`key`: [...], "max": 1 or 255} and the maximum, by default 1."""
    try:
        content = json.loads(body)
    # Invalid UTF-8 and invalid JSON are ValueErrors; deep nesting is a RecursionError.
    except (ValueError, RecursionError) as error:
        raise HTTPException(
            400, f"the body isn't JSON ({str(error)[:200]}); expected an object with numbers"
        ) from error
    if not isinstance(content, dict) or key not in content:
        raise HTTPException(
            422,
            f'the JSON has no "{key}"; expected {{"{key}": [...]}} with nested lists of numbers',
        )
    white = content.get("max", 1)
    if type(white) not in (int, float) or white not in (1, 255):
        raise HTTPException(
            422, f'"max" is {str(white)[:40]!r}; expected 1 or 255, the value of white'
        )
    try:
        # With a dtype the array takes 8 bytes per value; without, one long string would set its width.
        return np.array(content[key], dtype=np.float64), float(white)
    except (ValueError, TypeError, OverflowError) as error:
        raise HTTPException(
            422,
            f'"{key}" can\'t be converted to an array ({str(error)[:200]}); expected nested lists of finite '
            "numbers, all rows of one length",
        ) from error


def _parse_npy(body: bytes) -> tuple[np.ndarray[Any, Any], float]:
    """Return the array of a .npy file, uint8 from 0 to 255 or floats from 0 to 1, and its maximum."""
    file = BytesIO(body)
    try:
        # A header that announces more than the file contains costs no memory: pages are not written to.
        values = npy_format.read_array(file, allow_pickle=False, max_header_size=MAX_NPY_HEADER)
    # The header is a Python literal, which can be invalid in many ways.
    except Exception as error:
        raise HTTPException(
            400,
            f"the body isn't a complete .npy file of numbers ({str(error)[:200]}); expected the output of "
            "numpy.save: send pictures as image/png, image/jpeg, ...",
        ) from error
    if file.read(1):
        raise HTTPException(400, "the .npy file has trailing bytes; expected one array")
    if values.dtype != np.uint8 and (values.dtype.kind != "f" or values.dtype.itemsize > 8):
        raise HTTPException(
            422,
            f"the array has dtype {str(values.dtype)[:40]}; expected uint8 from 0 to 255, or float32 from "
            "0 to 1: convert it",
        )
    return values, 255.0 if values.dtype == np.uint8 else 1.0


# ---- forms


class _FormParser(MultiPartParser):
    """Starlette's form parser, which otherwise drops an incomplete part and writes large files to disk."""

    spool_max_size = 2**63 - 1  # all in memory; `max_bytes` bounds the body
    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _read_form(request: Request, max_images: int) -> list[bytes]:
    async def complete_stream() -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            yield chunk
        if not parser.ended:
            raise MultiPartException("The final boundary is missing.")

    parser = _FormParser(request.headers, complete_stream(), max_files=max_images, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise HTTPException(
            413 if "Too many files" in error.message else 400,
            f"the form can't be parsed ({error.message[:200]}); expected multipart/form-data with at most "
            f"{max_images} files and no other fields",
        ) from error
    files = [await file.read() for _, file in form.multi_items() if isinstance(file, UploadFile)]
    await form.close()
    if not files:
        raise HTTPException(422, "the form has no file; expected at least one image")
    return files
