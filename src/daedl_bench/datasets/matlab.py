"""MATLAB files of version 5, as far as they hold arrays of numbers.

SciPy's reader is not made for files that may be damaged: a wrong type ends the process. This one knows
less, and checks what it is told.

Layout: 128 bytes, the last two of which are IM; then elements. An element is its type and its size in
bytes, 32 bits each, and that many bytes. Type 15 is an element packed by zlib; type 14 is an array,
that is four elements, each filled up to eight bytes: flags, axes' lengths, name, values, the first axis
fastest. An element of up to four bytes may have its size in the upper half of the type.
"""

import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np

from daedl.data.arrays import Array, require_size

START = 128
LENGTHS, MATRIX, PACKED = 5, 14, 15
COMPLEX = 0x800
# Classes of arrays from double to unsigned 64-bit integers; below are cells, structures, text and the like.
NUMBERS = range(6, 16)
TYPES: Mapping[int, str] = MappingProxyType(
    {
        1: "i1",
        2: "u1",
        3: "<i2",
        4: "<u2",
        5: "<i4",
        6: "<u4",
        7: "<f4",
        9: "<f8",
        12: "<i8",
        13: "<u8",
    }
)


def read_mat(path: Path) -> dict[str, Array]:
    """The arrays of a MATLAB file by name, with the type that the file stores them in.

    What is packed is refused if it unpacks to more than 2 GiB, all arrays together.
    """
    content = memoryview(path.read_bytes())
    if bytes(content[START - 2 : START]) != b"IM":
        raise ValueError("it does not start as MATLAB's version 5 does")
    return dict(_array(each) for each in _unpacked(_elements(content[START:], 1)))


def _elements(content: memoryview, unit: int) -> Iterator[tuple[int, memoryview]]:
    """Type and content of the elements, each filled up to a multiple of `unit` bytes."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        start, end = at + 8, at + 8 + size
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            start, end = at + 4, at + 8
        if size > end - start or end > len(content):
            raise ValueError(f"an element of {size:,} bytes is cut off")
        yield kind, content[start : start + size]
        at = -(-end // unit) * unit


def _unpacked(elements: Iterable[tuple[int, memoryview]]) -> Iterator[memoryview]:
    """The contents of arrays, which may be packed."""
    total = 0
    for kind, data in elements:
        found, content = kind, data
        if kind == PACKED:
            found, content = _unpack(data, total)
            total += len(content)
        if found != MATRIX:
            raise ValueError(f"an element has type {found} where an array is expected")
        yield content


def _unpack(data: memoryview, before: int) -> tuple[int, memoryview]:
    """Type and content of a packed element, after others of `before` bytes were unpacked."""
    stream = zlib.decompressobj()
    kind, size = struct.unpack("<II", stream.decompress(data, 8))
    require_size("what it packs", before + size)
    content = stream.decompress(stream.unconsumed_tail, size) if size else b""
    # On to the end, where zlib keeps its checksum.
    more = stream.decompress(stream.unconsumed_tail, 1)
    if len(content) != size or more or not stream.eof:
        raise ValueError(f"an array of {size:,} bytes unpacks to fewer or more")
    return kind, memoryview(content)


def _array(data: memoryview) -> tuple[str, Array]:
    """Name and values of an array."""
    parts = list(islice(_elements(data, 8), 4))
    if len(parts) < 4:
        raise ValueError("an array is cut off")
    (_, flags), (lengths, axes), (_, name), (kind, values) = parts
    (word,) = struct.unpack("<I", flags[:4])
    if word & 0xFF not in NUMBERS or word & COMPLEX or kind not in TYPES or lengths != LENGTHS:
        raise ValueError(f"an array of class {word & 0xFF} and type {kind} is not one of numbers")
    shape = struct.unpack(f"<{len(axes) // 4}i", axes)
    announced = math.prod(shape) * np.dtype(TYPES[kind]).itemsize
    if min(shape, default=-1) < 0 or announced != len(values):
        raise ValueError(f"an array announces shape {shape} but holds {len(values):,} bytes")
    found = np.frombuffer(values, dtype=TYPES[kind]).reshape(shape, order="F")
    return bytes(name).decode("latin-1"), found
