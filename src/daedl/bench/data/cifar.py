"""CIFAR-10 and CIFAR-100 as published: Python pickles, read without running what a pickle may hold.

A pickle is a program. These files need but dicts, lists, strings, integers and one array, so names that
a file asks for are answered with two classes of ours that keep the array's state and do nothing, and
any other name is refused: not even NumPy's own code runs on what the file says. Python's reader of
pickles is used in place of C's, which sets aside a table as long as the largest number that a file
gives to an object: ten bytes could fill the memory.
"""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daedl.bench.data.arrays import Array, Pair, require_equal_counts

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
LABEL_KEYS = (b"labels", b"fine_labels")


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


class _Unpickler(pickle._Unpickler):
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
    return {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}


def _pixels(data: Any, path: Path) -> Array:
    """The array (N, 3, 32, 32) from the state (version, shape, type, column by column?, bytes)."""
    state = data.state if isinstance(data, _Array) else None
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], bytes)):
        raise ValueError(f"{path} holds no array under `data`; {_expected()}")
    _, shape, kind, by_column, content = state
    code = kind.code if isinstance(kind, _Type) else None
    fits = isinstance(shape, tuple) and len(shape) == 2 and shape[1] == PIXELS
    if code not in (b"u1", "u1") or not fits or len(content) != shape[0] * PIXELS:
        raise ValueError(
            f"`data` in {path} has type {code!r}, shape {shape} and {len(content)} bytes; {_expected()}"
        )
    flat = np.frombuffer(content, dtype=np.uint8)
    return flat.reshape(shape, order="F" if by_column else "C").reshape(-1, *SHAPE)


def _targets(batch: dict[Any, Any], path: Path) -> Array:
    targets = next((batch[key] for key in LABEL_KEYS if key in batch), None)
    if not isinstance(targets, list) or not all(type(label) is int for label in targets):
        raise ValueError(
            f"{path} has no list of integers under `labels` or `fine_labels`; {_expected()}"
        )
    return np.array(targets, dtype=np.int64)


def _expected() -> str:
    return f"expected a CIFAR batch, `data` of bytes (N, {PIXELS}) and a list of N labels: download it again"
