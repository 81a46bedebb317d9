"""Arrays of numbers, in JSON or as a .npy file, to inputs of a network."""

import json
import math
from io import BytesIO
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from daedl.serving.errors import RequestError
from daedl.serving.inputs import Inputs

# Of a .npy file's first lines: a header of the usual kind has 118 (chosen).
MAX_HEADER = 1024


def from_json(body: bytes, inputs: Inputs, many: bool, max_images: int) -> Tensor:
    """Inputs (N, *shape) from {"array": [...]}, or from {"images": [[...], ...]} where `many`.

    Numbers are from 0 to 1, or from 0 to "max" if the object has it; inputs that aren't images may have
    any finite numbers.
    """
    key = "images" if many else "array"
    content = _parsed(body)
    if not isinstance(content, dict) or key not in content:
        arrived = ", ".join(map(repr, content))[:80] if isinstance(content, dict) else "no object"
        raise RequestError(
            422,
            f'the JSON holds {arrived or "nothing"}; expected {{"{key}": [...]}}, with nested lists of '
            f"numbers of shape {_told(inputs, many)}",
        )
    arrays = content[key] if many else [content[key]]
    if not isinstance(arrays, list) or not arrays:
        raise RequestError(
            422, f'"{key}" is no list or empty; expected a list of at least one image'
        )
    _require_number(len(arrays), max_images)
    top = _maximum(content) if inputs.are_images else math.inf
    numbers = [_numbers(array, inputs, top) for array in arrays]
    values = torch.from_numpy(np.stack(numbers)).reshape(-1, *inputs.shape)
    return (values / top if math.isfinite(top) else values).to(inputs.dtype)


def from_npy(body: bytes, inputs: Inputs, many: bool, max_images: int) -> Tensor:
    """Inputs (N, *shape) from a .npy file: of bytes from 0 to 255, or of floats from 0 to 1.

    One input has the network's shape, many have one axis more, in front.
    """
    values = _npy_array(body)
    shape = values.shape[1:] if many else values.shape
    if shape not in inputs.shapes or values.size == 0:
        raise RequestError(
            422,
            f"the array has shape {values.shape}; expected {_told(inputs, many)}: "
            "channels come first",
        )
    _require_number(len(values) if many else 1, max_images)
    if values.dtype == np.uint8 and inputs.are_images:
        return inputs.from_pixels(torch.from_numpy(values.copy()))
    _require_range(float(values.min()), float(values.max()), 1 if inputs.are_images else math.inf)
    plain = values.astype(np.float64)
    return torch.from_numpy(plain).reshape(-1, *inputs.shape).to(inputs.dtype)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    # Not UTF-8 and not JSON are ValueErrors; a thousand brackets are too deep.
    except (ValueError, RecursionError) as error:
        raise RequestError(
            400, f"the body isn't JSON ({str(error)[:200]}); expected an object with numbers"
        ) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it holds {name}")


def _maximum(content: dict[str, Any]) -> float:
    top = content.get("max", 1)
    if type(top) not in (int, float) or top not in (1, 255):
        raise RequestError(
            422, f'"max" is {str(top)[:40]!r}; expected 1 or 255, the number that stands for white'
        )
    return float(top)


def _numbers(array: Any, inputs: Inputs, top: float) -> np.ndarray[Any, Any]:
    """The numbers of nested lists, in a row, float64; raise unless they have the network's shape."""
    for shape in inputs.shapes:
        flat = _flat(array, shape)
        if flat is not None:
            break
    else:
        raise RequestError(
            422,
            f"an array has shape {_shape(array)}, or rows of different lengths; expected numbers of shape "
            f"{_told(inputs, False)}: channels come first",
        )
    try:
        values = np.array(flat, dtype=np.float64)
    except OverflowError as error:
        raise RequestError(422, "a number is too large; expected finite ones") from error
    _require_range(float(values.min()), float(values.max()), top)
    return values


def _flat(array: Any, shape: tuple[int, ...]) -> list[float] | None:
    """The numbers in nested lists of exactly this shape, else None.

    Axis by axis, so that what is made of a body is never larger than what the network takes.
    """
    level = [array]
    for size in shape:
        if not all(isinstance(each, list) and len(each) == size for each in level):
            return None
        level = list(chain.from_iterable(level))
    return level if set(map(type, level)) <= {int, float} else None


def _shape(array: Any) -> tuple[int, ...]:
    """The lengths of an array's first lists."""
    lengths: list[int] = []
    while isinstance(array, list) and len(lengths) < 6:
        lengths.append(len(array))
        array = array[0] if array else None
    return tuple(lengths)


def _npy_array(body: bytes) -> np.ndarray[Any, Any]:
    """A view of the numbers in a .npy file; nothing is taken from its header on trust."""
    file = BytesIO(body)
    try:
        version = npy.read_magic(file)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, fortran, dtype = readers[version](file, max_header_size=MAX_HEADER)
    # A header is a Python literal, which can be wrong in many ways.
    except Exception as error:
        raise RequestError(
            400,
            f"the body isn't a .npy file ({type(error).__name__}); expected what numpy.save writes: send "
            "image/png or image/jpeg for a picture",
        ) from error
    if dtype != np.uint8 and (dtype.kind != "f" or dtype.itemsize > 8):
        raise RequestError(
            422,
            f"the array is of {str(dtype)[:40]}; expected uint8 from 0 to 255, or float32 from 0 to 1: "
            "convert it",
        )
    expected, arrived = math.prod(shape) * dtype.itemsize, len(body) - file.tell()
    if arrived != expected or min(shape, default=0) < 0:
        raise RequestError(
            400,
            f"the .npy file has {arrived:,} bytes of numbers where its header says {expected:,}; "
            "expected a whole file: send it again",
        )
    flat = np.frombuffer(body, dtype=dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def _require_range(low: float, high: float, top: float) -> None:
    if math.isfinite(low) and math.isfinite(high) and (top == math.inf or 0 <= low <= high <= top):
        return
    expected = "finite numbers" if top == math.inf else f"0 to {top:g}"
    hint = ': divide by 255, or say "max": 255' if top == 1 and 0 <= low <= high <= 255 else ""
    raise RequestError(422, f"numbers run from {low:g} to {high:g}; expected {expected}{hint}")


def _require_number(number: int, most: int) -> None:
    if number > most:
        raise RequestError(
            413, f"the request has {number:,} images; expected at most {most}: send fewer at a time"
        )


def _told(inputs: Inputs, many: bool) -> str:
    """Shapes that are expected, for people."""
    each = [("N", *shape) if many else shape for shape in inputs.shapes]
    return " or ".join(f"({', '.join(map(str, shape))})" for shape in each)
