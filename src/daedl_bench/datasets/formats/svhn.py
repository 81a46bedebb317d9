"""SVHN as published: MATLAB 5 files with arrays `X` and `y`.

scipy.io.loadmat is not safe on damaged files: a wrong type code ends the process, and announced sizes are
allocated unchecked (scipy 1.17). This reader supports numeric arrays only, and checks every size.

Layout: 128 bytes that end in IM, then elements. An element is its type and its size in bytes, 32 bits each,
followed by that many bytes. Type 15 is a zlib-compressed element. Type 14 is an array: four elements, each
padded to eight bytes, with flags, shape, name and column-major values. An element of up to four bytes may
store its size in the upper half of the type.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from daedl.data.arrays import LARGEST, Array

START = 128
SHAPE, MATRIX, COMPRESSED = 5, 14, 15  # element types
COMPLEX = 0x800  # flag
NUMERIC = range(6, 16)  # array classes, from double to uint64; the others are cells, structs, text
# fmt: off
DTYPES = {
    1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8",
}
# fmt: on


def read(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Images (N, 32, 32, 3) from `X` (32, 32, 3, N) and labels (N, 1) from `y`, where 10 is the digit 0."""
    (path,) = paths
    try:
        content = dict(read_arrays(path.read_bytes()))
    except (ValueError, struct.error, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged or not a MATLAB 5 file ({error}); expected SVHN's cropped digits: copy or "
            "download it again"
        ) from error
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.ndim != 4:
        raise ValueError(
            f"{path} lacks X (32, 32, 3, N) or y (N, 1); expected SVHN's cropped digits (format 2): "
            "download train_32x32.mat or test_32x32.mat"
        )
    if labels.dtype.kind in "iu" and labels.size and (labels.min() < 1 or labels.max() > 10):
        raise ValueError(
            f"labels in {path} range from {labels.min()} to {labels.max()}; expected 1 to 10, where 10 is "
            "the digit 0: check that the file belongs to SVHN"
        )
    return images.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels)


def read_arrays(content: bytes, limit: int = LARGEST) -> Iterator[tuple[str, Array]]:
    """Names and values of the arrays, which may decompress to `limit` bytes in total."""
    if content[START - 2 : START] != b"IM":
        raise ValueError("it lacks the signature of a MATLAB 5 file")
    for kind, data in _elements(memoryview(content)[START:], 1):
        elements = [(kind, data)]
        if kind == COMPRESSED:
            whole = _decompress(data, limit)
            limit -= len(whole)
            elements = list(_elements(whole, 1))
        if [kind for kind, _ in elements] != [MATRIX]:
            raise ValueError(f"an element has type {elements[0][0]}, which is not an array")
        yield _array(elements[0][1])


def _elements(content: memoryview, padding: int) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each element, padded to a multiple of `padding` bytes."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        start, end = at + 8, at + 8 + size
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            start, end = at + 4, at + 8
        if size > end - start or end > len(content):
            raise ValueError(f"an element of {size:,} bytes is truncated")
        yield kind, content[start : start + size]
        at = -(-end // padding) * padding


def _decompress(data: memoryview, limit: int) -> memoryview:
    """At most `limit` bytes, up to the end of the stream, where zlib verifies its checksum."""
    stream = zlib.decompressobj()
    content = stream.decompress(data, limit + 1)
    if len(content) > limit:
        raise ValueError(f"an array decompresses to more than the remaining {limit:,} bytes")
    if not content or not stream.eof:
        raise ValueError("a compressed element is truncated")
    return memoryview(content)


def _array(data: memoryview) -> tuple[str, Array]:
    parts = list(islice(_elements(data, 8), 4))
    if len(parts) < 4:
        raise ValueError("an array is truncated")
    (_, flags), (shape_type, axes), (_, name), (kind, values) = parts
    (word,) = struct.unpack("<I", flags[:4])
    if word & 0xFF not in NUMERIC or word & COMPLEX or kind not in DTYPES or shape_type != SHAPE:
        raise ValueError(f"an array of class {word & 0xFF} and type {kind} is not numeric")
    shape, dtype = struct.unpack(f"<{len(axes) // 4}i", axes), np.dtype(DTYPES[kind])
    if min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"an array announces shape {shape} but holds {len(values):,} bytes")
    return bytes(name).decode("latin-1"), np.frombuffer(values, dtype).reshape(shape, order="F")
