"""IDX, the format of MNIST and of the sets made after it; plain or gzipped.

Layout: two zero bytes, the type (8: unsigned byte), the number of axes, the axes' lengths as big-endian
32-bit numbers, then the values, the last axis fastest.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

from daedl.data.arrays import LARGEST, Pair, require_equal_counts

UNSIGNED_BYTE = 8
IMAGE_AXES, LABEL_AXES = 3, 1
BLOCK = 1 << 20  # bytes read at once, chosen


def read(images_path: Path, labels_path: Path) -> Pair:
    """Images (N, 1, H, W), uint8, and labels (N,), int64."""
    images = read_idx(images_path, IMAGE_AXES)
    labels = read_idx(labels_path, LABEL_AXES)
    require_equal_counts(len(images), len(labels), images_path, labels_path)
    return images.unsqueeze(1), labels.long()


def read_idx(path: Path, axes: int) -> Tensor:
    """The uint8 tensor in an IDX file, which must have that many axes."""
    try:
        with _opened(path) as file:
            shape = _shape(file, path, axes)
            size = math.prod(shape)
            # One byte more, to see whether there is more than there should be.
            data = _read_up_to(file, size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is a damaged or truncated gzip file ({error}); expected a whole one: copy or "
            "download it again"
        ) from error
    if len(data) != size:
        arrived = f"only {len(data)}" if len(data) < size else "more"
        raise ValueError(
            f"{path} is damaged: its header announces {size} bytes {shape}, but {arrived} follow(s); "
            "expected a whole IDX file: copy or download it again"
        )
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).reshape(shape))


def _read_up_to(file: IO[bytes], size: int) -> bytearray:
    """`size` bytes, or all there are; memory is taken for what arrives, not for what was announced."""
    data = bytearray()
    while block := file.read(min(BLOCK, size - len(data))):
        data += block
    return data


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if zipped else path.open("rb")


def _shape(file: IO[bytes], path: Path, axes: int) -> tuple[int, ...]:
    magic = file.read(4)
    expected = bytes((0, 0, UNSIGNED_BYTE, axes))
    if magic != expected:
        kind = "images" if axes == IMAGE_AXES else "labels"
        raise ValueError(
            f"{path} starts with the bytes {magic.hex() or 'of nothing'}; expected {expected.hex()}, "
            f"IDX {kind}: is it the {kind} file, and whole? Copy or download it again"
        )
    header = file.read(4 * axes)
    if len(header) != 4 * axes:
        raise ValueError(
            f"{path} ends within its header; expected a whole IDX file: copy or download it again"
        )
    shape = struct.unpack(f">{axes}I", header)
    if not 0 < math.prod(shape) <= LARGEST:
        raise ValueError(
            f"{path} is damaged: its header announces values of shape {shape}; expected some, and at "
            f"most {LARGEST:,}: copy or download it again"
        )
    return shape
