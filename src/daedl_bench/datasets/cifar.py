"""CIFAR-10 and CIFAR-100 as published: Python pickles, read without running what a pickle may hold.

A pickle is a program. These files need but dicts, lists, strings, integers and one array, so names that
a file asks for are answered with two classes of ours that keep the array's state and do nothing, and
any other name is refused: not even NumPy's own code runs on what the file says. So are instructions that
no such file needs. Python's reader of pickles is used in place of C's, which sets aside a table as long
as the largest number that a file gives to an object: ten bytes could fill the memory.
"""

import io
import pickle
import reprlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daedl.data.arrays import Array, Pair, require_equal_counts

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
LABEL_KEYS = (b"labels", b"fine_labels")
CLASSES = 100  # of CIFAR-100; CIFAR-10 has fewer
# Instructions that no batch needs: arrays are read as protocols up to 4 write them. BYTEARRAY8 sets aside
# as many bytes as the file asks for; an integer of LONG4 may have too many digits to be told in an error.
UNNEEDED = (
    *("BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "LONG4"),
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"),
    *("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
    *("EMPTY_SET", "ADDITEMS", "FROZENSET"),
)
# Where instructions that fill a dict find its keys on the stack.
KEYS = {"SETITEM": slice(-2, -1), "SETITEMS": slice(None, None, 2), "DICT": slice(None, None, 2)}


class _Array:
    """Stands for an array under construction."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type:
    """Stands for a NumPy dtype."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _Refused(pickle.UnpicklingError):
    """A pickle asks for what these files don't need."""


def _refuse(instruction: str, _: Any) -> None:
    raise _Refused(f"it holds the instruction {instruction}")


def _with_names(name: str, unpickler: Any) -> None:
    """Put items into a dict whose keys are strings: tuples in tuples overflow the stack when hashed."""
    for key in unpickler.stack[KEYS[name]]:
        if type(key) not in (str, bytes):
            raise _Refused(f"it holds a dict with a {type(key).__name__} as a key")
    pickle._Unpickler.dispatch[getattr(pickle, name)[0]](unpickler)


class _Unpickler(pickle._Unpickler):
    dispatch = {  # noqa: RUF012 (as in the class above)
        **pickle._Unpickler.dispatch,
        **{getattr(pickle, name)[0]: partial(_refuse, name) for name in UNNEEDED},
        **{getattr(pickle, name)[0]: partial(_with_names, name) for name in KEYS},
    }

    def find_class(self, module_name: str, global_name: str, /) -> type:
        try:
            return _ADMITTED[module_name, global_name]
        except KeyError:
            raise _Refused(f"it asks for {module_name}.{global_name}") from None


def read(paths: Sequence[Path]) -> Pair:
    """Images (N, 3, 32, 32), uint8, and (fine) labels (N,), int64, of the batches one after the other."""
    images, labels = [], []
    for path in paths:
        batch = _unpickled(path)
        pixels = _pixels(batch.get(b"data"), path)
        targets = _targets(batch, path)
        require_equal_counts(len(pixels), len(targets), path, path)
        images.append(pixels)
        labels.append(targets)
    return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels))


def _unpickled(path: Path) -> dict[Any, Any]:
    try:
        # From memory: a file would set aside as many bytes as a damaged length asks for.
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except _Refused as error:
        raise ValueError(
            f"{path} is refused, and nothing in it was run: {error}; expected a CIFAR batch, a pickle "
            "of dicts, lists and one array: download it again from a place that you trust"
        ) from error
    # A damaged pickle can fail in any way: nothing of ours runs in there, so nothing is hidden.
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or truncated ({type(error).__name__}: {error}); expected a CIFAR batch: "
            "copy or download it again"
        ) from error
    if not isinstance(batch, dict):
        raise ValueError(
            f"{path} holds a {type(batch).__name__}; expected a CIFAR batch, a dict: download it again"
        )
    # Written by Python 2 the keys are bytes, by Python 3 most often strings.
    return {
        key.encode(errors="replace") if isinstance(key, str) else key: value
        for key, value in batch.items()
    }


def _pixels(data: Any, path: Path) -> Array:
    """The array (N, 3, 32, 32) from the state (version, shape, type, column by column?, bytes)."""
    state = data.state if isinstance(data, _Array) else None
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], bytes)):
        raise ValueError(f"{path} holds no array under `data`; {_expected()}")
    _, shape, kind, by_column, content = state
    code = kind.code if isinstance(kind, _Type) else None
    numbers = isinstance(shape, tuple) and all(type(length) is int for length in shape)
    fits = numbers and shape == (len(content) // PIXELS, PIXELS) and len(content) % PIXELS == 0
    if code not in (b"u1", "u1") or not fits:
        raise ValueError(
            f"`data` in {path} has type {reprlib.repr(code)}, shape {reprlib.repr(shape)} and "
            f"{len(content)} bytes; {_expected()}"
        )
    flat = np.frombuffer(content, dtype=np.uint8)
    return flat.reshape(shape, order="F" if by_column else "C").reshape(-1, *SHAPE)


def _targets(batch: dict[Any, Any], path: Path) -> Array:
    targets = next((batch[key] for key in LABEL_KEYS if key in batch), None)
    if not isinstance(targets, list) or not all(type(label) is int for label in targets):
        raise ValueError(
            f"{path} has no list of integers under `labels` or `fine_labels`; {_expected()}"
        )
    low, high = min(targets, default=0), max(targets, default=0)
    if low < 0 or high >= CLASSES:
        raise ValueError(
            f"labels in {path} range from {_told(low)} to {_told(high)}; expected 0 to {CLASSES - 1} at "
            "most: download it again"
        )
    return np.array(targets, dtype=np.int64)


def _told(number: int) -> str:
    """Python refuses to print numbers of thousands of digits."""
    return str(number) if abs(number) < 10**30 else "a number of more than 30 digits"


def _expected() -> str:
    return f"expected a CIFAR batch, `data` of bytes (N, {PIXELS}) and a list of N labels: download it again"
