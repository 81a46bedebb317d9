"""IDX, the format of MNIST and its successors; plain or gzipped.

Layout: two zero bytes, the type (8: unsigned byte), the number of axes, the length of each axis as a
big-endian 32-bit integer, then the values in row-major order.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np

from daedl.data.arrays import LARGEST, Array

UNSIGNED_BYTE = 8
IMAGE_AXES, LABEL_AXES = 3, 1
BLOCK = 1 << 20  # bytes per read, chosen


def read(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Images (N, H, W, 1) from the first file and labels (N,) from the second, both uint8."""
    images_path, labels_path = paths
    return read_idx(images_path, IMAGE_AXES)[..., None], read_idx(labels_path, LABEL_AXES)


def read_idx(path: Path, axes: int) -> Array:
    """The uint8 array in an IDX file with that many axes."""
    try:
        with _open(path) as file:
            shape = _shape(file, path, axes)
            size = math.prod(shape)
            data = _read_up_to(file, size + 1)  # one more byte detects trailing data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is a damaged or truncated gzip file ({error}); expected a complete one: copy or "
            "download it again"
        ) from error
    if len(data) != size:
        arrived = f"only {len(data)}" if len(data) < size else "more"
        raise ValueError(
            f"{path} is damaged: its header announces {size} bytes {shape}, but {arrived} follow; "
            "expected a complete IDX file: copy or download it again"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _read_up_to(file: IO[bytes], size: int) -> bytearray:
    """At most `size` bytes, in blocks, so that memory grows with the data and not with the header."""
    data = bytearray()
    while block := file.read(min(BLOCK, size - len(data))):
        data += block
    return data


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if gzipped else path.open("rb")


def _shape(file: IO[bytes], path: Path, axes: int) -> tuple[int, ...]:
    start, expected = file.read(4), bytes((0, 0, UNSIGNED_BYTE, axes))
    if start != expected:
        kind = "images" if axes == IMAGE_AXES else "labels"
        raise ValueError(
            f"{path} starts with the bytes {start.hex() or '(none)'}; expected {expected.hex()}, IDX "
            f"{kind}: check that it is the {kind} file, and copy or download it again"
        )
    lengths = file.read(4 * axes)
    shape = struct.unpack(f">{axes}I", lengths) if len(lengths) == 4 * axes else (0,)
    if not 0 < math.prod(shape) <= LARGEST:
        raise ValueError(
            f"{path} is damaged: its header announces shape {shape}; expected 1 to {LARGEST:,} values: "
            "copy or download it again"
        )
    return shape
