"""Reads .npz and .npy files, and validates arrays of images and labels."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from daedl.data.images import ImageSet

Array = NDArray[Any]
Pair = tuple[Tensor, Tensor]
# Largest uncompressed size in bytes, against decompression bombs (chosen: four times EMNIST's largest file).
LARGEST = 1 << 31


def read_npz(path: str | Path, split: str = "test", *, labelled: bool = True) -> ImageSet:
    """Reads the arrays `images` and `labels` (N,) of a .npz file, and `class_names` (C,) if present.

    Images are uint8: (N, H, W) grey, (N, H, W, C) or (N, C, H, W) with 1 or 3 channels. Other arrays are
    ignored. Pickled objects and arrays of more than 2 GiB are rejected. With `labelled=False` only the
    images are read, all with label 0.
    """
    path = Path(path)
    expected = "a .npz archive with arrays `images` and `labels`"
    with _readable(path, expected), zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        keys = ("images", "labels", "class_names") if labelled else ("images",)
        arrays = {
            key: _read_member(archive, f"{key}.npy") for key in keys if f"{key}.npy" in members
        }
    if not labelled and "images" in arrays:
        arrays["labels"] = np.zeros(arrays["images"].shape[:1], np.int64)
    if not {"images", "labels"} <= set(arrays):
        names = ", ".join(sorted(name.removesuffix(".npy") for name in members))
        raise ValueError(
            f"{path} contains {names or 'no named array'}; expected `images` and "
            "`labels`: write it with np.savez(path, images=images, labels=labels)"
        )
    images, labels = tensors(channels_last(arrays["images"], path), arrays["labels"], path, path)
    class_names = _class_names(arrays.get("class_names"), path)
    try:
        return ImageSet(images, labels, path.stem, split, class_names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_npy(path: Path) -> Array:
    """Memory-maps the array in a .npy file; pickled objects are rejected."""
    with _readable(path, "a .npy array of numbers"):
        return np.lib.format.open_memmap(path, mode="r")


def channels_last(images: Array, path: Path) -> Array:
    """Converts images (N, H, W), (N, H, W, C) or (N, C, H, W) to (N, H, W, C), unless ambiguous."""
    shape = images.shape
    if images.ndim == 3:
        return images[..., None]
    first, last = images.ndim == 4 and shape[1] in (1, 3), images.ndim == 4 and shape[3] in (1, 3)
    if first == last:
        raise ValueError(
            f"images in {path} have shape {shape}; expected (N, H, W), (N, H, W, C) or (N, C, H, W) "
            "with 1 or 3 channels and an unambiguous channel axis: add the channel axis or crop the images; "
            "remove an alpha channel with images[..., :3]"
        )
    return images if last else images.transpose(0, 2, 3, 1)


def tensors(images: Array, labels: Array, images_path: Path, labels_path: Path) -> Pair:
    """Converts images (N, H, W, C) to uint8 (N, C, H, W) and integer labels (N,) or (N, 1) to int64 (N,)."""
    if images.dtype != np.uint8:
        raise ValueError(
            f"images in {images_path} are {images.dtype}; expected uint8 with values from 0 to 255: "
            "convert with (images * 255).round().astype(np.uint8) if they are floats in [0, 1]"
        )
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
        raise ValueError(
            f"images in {images_path} have shape {images.shape}; expected (N, H, W, C) with N > 0 and 1 or "
            "3 channels: check that this is the right file"
        )
    if labels.dtype.kind not in "iu" or labels.shape not in ((labels.size,), (labels.size, 1)):
        raise ValueError(
            f"labels in {labels_path} are {labels.dtype} of shape {labels.shape}; expected integers "
            "(N,): use labels.argmax(-1) for one-hot labels, labels.astype(int) for integral floats, or "
            "np.unique(labels, return_inverse=True) for names"
        )
    require_equal_counts(len(images), len(labels), images_path, labels_path)
    # Copied, because memory-mapped arrays are read-only and tensors must be writable.
    first = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).copy()
    second = labels.reshape(-1).astype(np.int64)
    return torch.from_numpy(first), torch.from_numpy(second)


def require_equal_counts(images: int, labels: int, images_path: Path, labels_path: Path) -> None:
    """Raises unless the numbers of images and labels are equal."""
    if images != labels:
        raise ValueError(
            f"{images_path} contains {images} images but {labels_path} {labels} labels; expected one label "
            "per image: use files of the same dataset and split"
        )


def require_size(what: str, size: int) -> None:
    """Raises if the uncompressed size of `what` exceeds `LARGEST` bytes."""
    if size > LARGEST:
        raise ValueError(f"{what} unpacks to {size:,} bytes, more than {LARGEST:,}")


def _read_member(archive: zipfile.ZipFile, name: str) -> Array:
    """Reads an array from an archive, after validating the size in its header, which NumPy would allocate."""
    size = archive.getinfo(name).file_size  # zipfile does not decompress more than this
    require_size(name, size)
    with archive.open(name) as file:
        shape, dtype = _read_header(file)
    if dtype.hasobject:
        raise ValueError(
            f"{name} contains Python objects; resize images to a common size before np.savez, and convert "
            "names from pandas with .astype(str)"
        )
    if math.prod(shape) * max(dtype.itemsize, 1) > size:
        raise ValueError(
            f"the header of {name} declares {dtype} of shape {shape}, but the array has {size:,} bytes"
        )
    with archive.open(name) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and dtype in the header of a .npy file."""
    version = np.lib.format.read_magic(file)
    # Version 3 differs from version 2 only in the encoding of field names.
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _class_names(names: Array | None, path: Path) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1:
        raise ValueError(
            f"class_names in {path} are {names.dtype} of shape {names.shape}; expected strings (C,), one per "
            'class: write them as a list such as ["cat", "dog"]'
        )
    return tuple(names.tolist())


@contextmanager
def _readable(path: Path, expected: str) -> Iterator[None]:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}; expected {expected}: check the path")
    try:
        # NumPy multiplies the sizes of a damaged shape, which may overflow before it raises.
        with np.errstate(over="ignore"):
            yield
    # Damaged files raise many types of errors in NumPy, zipfile and zlib.
    except Exception as error:
        raise ValueError(
            f"{path} is damaged or has the wrong format ({error}); expected {expected}: copy or "
            "download it again"
        ) from error
