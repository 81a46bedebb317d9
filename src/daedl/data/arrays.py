"""Arrays in files: .npz of one's own, and the checks that every reader of arrays shares."""

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
# Bytes, chosen: four times the largest IDX file in use (EMNIST). What claims or unpacks to more may be
# meant to fill the memory.
LARGEST = 1 << 31


def read_npz(path: str | Path, split: str = "test", *, labelled: bool = True) -> ImageSet:
    """Arrays `images` and `labels` (N,) of a .npz file, with `class_names` (C,) if it holds them.

    Images are uint8: (N, H, W) grey, (N, H, W, C) or (N, C, H, W) with 1 or 3 channels. Other arrays are
    not looked at. Pickled objects are refused, and so are arrays of more than 2 GiB. `labelled=False`
    takes the images alone, all with label 0.
    """
    path = Path(path)
    expected = "a .npz archive with arrays `images` and `labels`"
    with _readable(path, expected), zipfile.ZipFile(path) as archive:
        held = archive.namelist()
        wanted = ("images", "labels", "class_names") if labelled else ("images",)
        arrays = {key: _member(archive, f"{key}.npy") for key in wanted if f"{key}.npy" in held}
    if not labelled and "images" in arrays:
        arrays["labels"] = np.zeros(arrays["images"].shape[:1], np.int64)
    if not {"images", "labels"} <= set(arrays):
        found = ", ".join(sorted(name.removesuffix(".npy") for name in held))
        raise ValueError(
            f"{path} holds {found or 'no named array'}; expected `images` and "
            "`labels`: write it with np.savez(path, images=images, labels=labels)"
        )
    images, labels = tensors(channels_last(arrays["images"], path), arrays["labels"], path, path)
    class_names = _class_names(arrays.get("class_names"), path)
    try:
        return ImageSet(images, labels, path.stem, split, class_names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_npy(path: Path) -> Array:
    """The array in a .npy file, mapped and not yet read; pickled objects are refused."""
    with _readable(path, "a .npy array of numbers"):
        return np.lib.format.open_memmap(path, mode="r")


def channels_last(images: Array, path: Path) -> Array:
    """Images (N, H, W), (N, H, W, C) or (N, C, H, W) as (N, H, W, C), if there is no doubt."""
    shape = images.shape
    if images.ndim == 3:
        return images[..., None]
    first, last = images.ndim == 4 and shape[1] in (1, 3), images.ndim == 4 and shape[3] in (1, 3)
    if first == last:
        raise ValueError(
            f"images in {path} have shape {shape}; expected (N, H, W), (N, H, W, C) or (N, C, H, W) "
            "with 1 or 3 channels and no doubt which axis they are: add the channel axis, or crop; of "
            "images with transparency take images[..., :3]"
        )
    return images if last else images.transpose(0, 2, 3, 1)


def tensors(images: Array, labels: Array, images_path: Path, labels_path: Path) -> Pair:
    """uint8 (N, C, H, W) and int64 (N,) from images (N, H, W, C) and integer labels (N,) or (N, 1)."""
    if images.dtype != np.uint8:
        raise ValueError(
            f"images in {images_path} are {images.dtype}; expected uint8 with values from 0 to 255: "
            "convert with (images * 255).round().astype(np.uint8) if they are floats in [0, 1]"
        )
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
        raise ValueError(
            f"images in {images_path} have shape {images.shape}; expected (N, H, W, C), at least one, "
            "with 1 or 3 channels: is this the file that it is named after?"
        )
    if labels.dtype.kind not in "iu" or labels.shape not in ((labels.size,), (labels.size, 1)):
        raise ValueError(
            f"labels in {labels_path} are {labels.dtype} of shape {labels.shape}; expected integers "
            "(N,): use labels.argmax(-1) if they are one-hot, labels.astype(int) if they are whole, or "
            "np.unique(labels, return_inverse=True) if they are names"
        )
    require_equal_counts(len(images), len(labels), images_path, labels_path)
    # Copies: what a file was mapped or read to may not be written to, what a tensor holds may.
    first = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).copy()
    second = labels.reshape(-1).astype(np.int64)
    return torch.from_numpy(first), torch.from_numpy(second)


def require_equal_counts(images: int, labels: int, images_path: Path, labels_path: Path) -> None:
    """Raise unless there are as many labels as images."""
    if images != labels:
        raise ValueError(
            f"{images_path} holds {images} images but {labels_path} {labels} labels; expected one label "
            "for each image: take both files from the same set and split"
        )


def require_size(what: str, size: int) -> None:
    """Raise if `what` would take more than `LARGEST` bytes once it is unpacked."""
    if size > LARGEST:
        raise ValueError(f"{what} unpacks to {size:,} bytes, more than {LARGEST:,}")


def _member(archive: zipfile.ZipFile, name: str) -> Array:
    """The array in a member of an archive; NumPy would set aside whatever memory a header asks for."""
    size = archive.getinfo(name).file_size  # no more than that is unpacked
    require_size(name, size)
    with archive.open(name) as file:
        shape, kind = _header(file)
    if kind.hasobject:
        raise ValueError(
            f"{name} holds objects, which aren't unpacked; images of mixed sizes end so, resize them to one "
            "size before np.savez, and so do names from pandas, convert them with .astype(str)"
        )
    if math.prod(shape) * max(kind.itemsize, 1) > size:
        raise ValueError(f"{name} announces {kind} of shape {shape} but holds {size:,} bytes")
    with archive.open(name) as file:
        found: Array = np.lib.format.read_array(file, allow_pickle=False)
    return found


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type that the header of a .npy file announces."""
    version = np.lib.format.read_magic(file)
    # Version 3 is version 2 with other letters in names of fields.
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    return shape, kind


def _class_names(names: Array | None, path: Path) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1:
        raise ValueError(
            f"class_names in {path} are {names.dtype} of shape {names.shape}; expected text (C,), a name "
            'for each class: write them as a list such as ["cat", "dog"]'
        )
    return tuple(names.tolist())


@contextmanager
def _readable(path: Path, expected: str) -> Iterator[None]:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}; expected {expected}: look at the path")
    try:
        # An absurd shape overflows where NumPy multiplies; what comes of it is an error in any case.
        with np.errstate(over="ignore"):
            yield
    # A damaged file can fail anywhere in the readers of NumPy, zipfile and zlib, which run nothing of it.
    except Exception as error:
        raise ValueError(
            f"{path} is damaged, or not what its name says ({error}); expected {expected}: copy or "
            "download it again"
        ) from error
