"""CIFAR-10 and CIFAR-100 as published: Python pickles, read without running code from the file.

A pickle is a program. CIFAR batches need only dicts, lists, strings, integers and one array, so the names
that a batch imports resolve to two placeholder classes that store their arguments; every other name, and
every opcode that a batch does not need, is rejected. Python's own unpickler is used instead of the C one,
which allocates a table as long as the largest memo index in the file: ten bytes could fill the memory.
"""

import io
import pickle
import reprlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from daedl.data.arrays import Array, require_equal_counts

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CLASSES = 100  # of CIFAR-100; CIFAR-10 has fewer
EXPECTED = (
    f"expected a CIFAR batch, uint8 `data` (N, {PIXELS}) and a list of N labels: download it again"
)
# Opcodes that no batch needs; arrays are read as protocols up to 4 write them. BYTEARRAY8 allocates the
# announced size; an integer of LONG4 may have too many digits to print in an error.
REJECTED = (
    *("BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "LONG4"),
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"),
    *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
    *("EMPTY_SET", "ADDITEMS", "FROZENSET"),
)
# Position of the keys on the stack for the opcodes that fill a dict.
KEYS = {"SETITEM": slice(-2, -1), "SETITEMS": slice(None, None, 2), "DICT": slice(None, None, 2)}


class _Placeholder:
    """Stands for an array or a dtype: stores the arguments and the state, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Placeholder):
    pass


class _Dtype(_Placeholder):
    pass


_IMPORTS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _RejectedError(pickle.UnpicklingError):
    """The pickle uses a name, an opcode or a key that CIFAR batches do not need."""


def _reject(opcode: str, _: Any) -> None:
    raise _RejectedError(f"it uses the opcode {opcode}")


def _fill_dict(opcode: str, unpickler: Any) -> None:
    """Fill a dict with string keys only: hashing deeply nested tuples overflows the stack."""
    for key in unpickler.stack[KEYS[opcode]]:
        if type(key) not in (str, bytes):
            raise _RejectedError(f"it holds a dict with a {type(key).__name__} as a key")
    pickle._Unpickler.dispatch[getattr(pickle, opcode)[0]](unpickler)


class _Unpickler(pickle._Unpickler):
    dispatch = {  # noqa: RUF012 (as in the base class)
        **pickle._Unpickler.dispatch,
        **{getattr(pickle, opcode)[0]: partial(_reject, opcode) for opcode in REJECTED},
        **{getattr(pickle, opcode)[0]: partial(_fill_dict, opcode) for opcode in KEYS},
    }

    def find_class(self, module_name: str, global_name: str, /) -> type:
        try:
            return _IMPORTS[module_name, global_name]
        except KeyError:
            raise _RejectedError(f"it imports {module_name}.{global_name}") from None


def read(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Images (N, 32, 32, 3) and (fine) labels (N,) of the batches, concatenated."""
    images, labels = [], []
    for path in paths:
        batch = _unpickle(path)
        images.append(_images(batch.get(b"data"), path))
        labels.append(_labels(batch.get(b"labels", batch.get(b"fine_labels")), path))
        require_equal_counts(len(images[-1]), len(labels[-1]), path, path)
    return np.concatenate(images).transpose(0, 2, 3, 1), np.concatenate(labels)


def _unpickle(path: Path) -> dict[Any, Any]:
    try:
        # From memory: reading from a file would allocate the length that a damaged opcode announces.
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except _RejectedError as error:
        raise ValueError(
            f"{path} is rejected, and no code from it was run: {error}; expected a CIFAR batch, a pickle "
            "of dicts, lists and one array: download it again from a source that you trust"
        ) from error
    # A damaged pickle can raise any exception.
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or truncated ({type(error).__name__}: {error}); {EXPECTED}"
        ) from error
    if not isinstance(batch, dict):
        raise ValueError(f"{path} holds a {type(batch).__name__}; {EXPECTED}")
    # Keys are bytes if written by Python 2, usually strings if written by Python 3.
    return {
        key.encode(errors="replace") if isinstance(key, str) else key: value
        for key, value in batch.items()
    }


def _images(data: Any, path: Path) -> Array:
    """The array (N, 3, 32, 32) from its pickled state (version, shape, dtype, is Fortran order, bytes)."""
    state = data.state if isinstance(data, _Array) else None
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], bytes)):
        raise ValueError(f"{path} holds no array under `data`; {EXPECTED}")
    _, shape, dtype, fortran, content = state
    code = dtype.arguments[:1] if isinstance(dtype, _Dtype) else ()
    integers = isinstance(shape, tuple) and all(type(length) is int for length in shape)
    fits = integers and shape == (len(content) // PIXELS, PIXELS) and len(content) % PIXELS == 0
    if code not in ((b"u1",), ("u1",)) or not fits:
        raise ValueError(
            f"`data` in {path} has dtype {reprlib.repr(code)}, shape {reprlib.repr(shape)} and "
            f"{len(content)} bytes; {EXPECTED}"
        )
    flat = np.frombuffer(content, dtype=np.uint8)
    return flat.reshape(shape, order="F" if fortran else "C").reshape(-1, *SHAPE)


def _labels(labels: Any, path: Path) -> Array:
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(
            f"{path} has no list of integers under `labels` or `fine_labels`; {EXPECTED}"
        )
    if wrong := [label for label in labels if not 0 <= label < CLASSES]:
        # Python does not print integers of thousands of digits.
        number = str(wrong[0]) if abs(wrong[0]) < 10**30 else "an integer of more than 30 digits"
        raise ValueError(
            f"labels in {path} contain {number}; expected 0 to {CLASSES - 1} at most: download it again"
        )
    return np.array(labels, dtype=np.int64)
