"""Image files that are decoded when they are needed, by worker processes."""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from daedl.checks import DataWarning
from daedl.data.pictures import EXPECTED, MODES, Resize, decode
from daedl.data.preprocess import Preprocess

Pixels = NDArray[np.uint8]
# MiB of decoded pixels that a folder may occupy in memory (chosen: a split copies them, and a laptop with
# 8 GiB must have room for both). Overridden by the environment variable DAEDL_MEMORY.
MEMORY = 2048
# Most worker processes (chosen), and fewest files for which they are started (chosen: starting them takes as
# long as decoding some hundred small files). Overridden by the environment variable DAEDL_WORKERS.
MAX_WORKERS = 4
MANY = 512
CHUNK = 64  # files per message of a worker (chosen)
NAMED = 10  # names in an error or warning (chosen), except of broken files


@dataclass(frozen=True, eq=False)
class Files(Dataset[Pixels | str]):
    """Pictures that are decoded on access; takes the place of a tensor (N, C, H, W), uint8.

    Attributes:
        pictures: paths, contents of files, or PIL images.
        channels: 1 (grey) or 3 (colour).
        size: height and width to resize to; None keeps the size.
        resize: see `Preprocess`.
    """

    pictures: tuple[Path | BytesIO | Image, ...]
    channels: int
    size: tuple[int, int] | None
    resize: Resize

    def __post_init__(self) -> None:
        if self.channels not in MODES or (self.size is not None and min(self.size) < 1):
            raise ValueError(
                f"channels is {self.channels} and size {self.size}; expected 1 channel for grey or 3 for "
                "colour images, and a size of at least 1"
            )
        if not self.pictures:
            raise ValueError(f"the list of files is empty; expected at least one {EXPECTED} file")

    @classmethod
    def of(cls, pictures: Iterable[Path | BytesIO | Image], preprocess: Preprocess) -> "Files":
        """Returns pictures with the channels and size of `preprocess`."""
        channels, height, width = preprocess.shape
        return cls(tuple(pictures), channels, (height, width), preprocess.resize)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Pixels | str:
        """Returns the pixels (C, H, W) of one picture, or the reason why it can't be read.

        An error would stop a worker process.
        """
        try:
            pixels = decode(self.pictures[index], self.channels, self.size, self.resize)
        except ValueError as error:
            return str(error)
        # Contiguous as a tensor in memory: convolutions round differently in another layout.
        return pixels.contiguous().numpy()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image; `decode_all` determines the size."""
        height, width = self.size or (0, 0)
        return self.channels, height, width

    def subset(self, indices: Tensor) -> "Files":
        """Returns the pictures at `indices` (M,), in that order."""
        return replace(self, pictures=tuple(self.pictures[i] for i in indices.tolist()))

    def batches(self, order: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yields images (B, C, H, W), one batch per tensor of indices (B,)."""
        loader = FileLoader(
            LabelledFiles(self, torch.zeros(len(self), dtype=torch.int64)),
            batch_sampler=[indices.tolist() for indices in order],
            generator=torch.Generator(),  # else the global random state would change
            **loader_options(len(self)),
        )
        return (images for images, _ in loader)

    def status(self) -> bytes:
        """Returns paths, sizes and modification times, for a digest."""
        status = [(path, path.stat()) for path in self.pictures if isinstance(path, Path)]
        entries = [f"{path}\0{each.st_size} {each.st_mtime_ns}" for path, each in status]
        return "\n".join(entries).encode("utf-8", "surrogateescape")


@dataclass(frozen=True, eq=False)
class LabelledFiles(Dataset[Any]):
    """Samples (index, pixels or reason, label) for a `FileLoader`."""

    files: Files
    labels: Tensor

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[int, Pixels | str, int]:
        return index, self.files[index], int(self.labels[index])


class FileLoader(DataLoader[Any]):
    """Batches of images (B, C, H, W) and labels (B,) of `LabelledFiles`.

    After a broken file no batch is yielded; the remaining files are decoded to name all broken ones. Workers
    send arrays, because tensors would occupy shared memory, which containers limit.
    """

    dataset: LabelledFiles

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:  # type: ignore[override]
        pictures = self.dataset.files.pictures
        broken: dict[Any, str] = {}
        for samples in super().__iter__():
            broken |= {pictures[i]: each for i, each, _ in samples if isinstance(each, str)}
            if not broken:
                _, images, labels = zip(*samples, strict=True)
                yield torch.from_numpy(np.stack(images)), torch.tensor(labels)
        if broken:
            raise broken_error(broken)


@dataclass(frozen=True)
class Readable:
    """The readable part of some files.

    Attributes:
        pixels: (N, C, H, W), uint8; `Files` if they exceed the memory limit.
        indices: (N,), positions of the readable files.
        broken: reasons by unreadable file.
    """

    pixels: Tensor | Files
    indices: Tensor
    broken: Mapping[Any, str]

    def require_all(self, skip: bool) -> None:
        """Raises an error that names the broken files; with `skip`, issues a warning."""
        if self.broken and not skip:
            raise broken_error(self.broken, skippable=True)
        if self.broken:
            warnings.warn(f"skipped: {list_broken(self.broken)}", DataWarning, stacklevel=3)


def decode_all(files: Files, limit: float | None = None) -> Readable:
    """Decodes every file once, so that all broken files are known before anything is computed.

    Pixels of more than `limit` bytes are not kept; by default `memory_limit()`.
    """
    limit = memory_limit() if limit is None else limit
    broken: dict[Any, str] = {}
    indices: list[int] = []
    stored: Pixels | None = None
    for index, result in enumerate(decoded(files)):
        if isinstance(result, str):
            broken[files.pictures[index]] = result
            continue
        if not indices:
            files = replace(files, size=result.shape[1:])
            if len(files) * result.nbytes <= limit:
                stored = np.empty((len(files), *result.shape), np.uint8)
        elif result.shape[1:] != files.size:
            _, height, width = files.shape
            raise ValueError(
                f"{files.pictures[index]} has {result.shape[1]}x{result.shape[2]} pixels but "
                f"{files.pictures[indices[0]]} {height}x{width}; expected images of the same size: pass a "
                "size to resize to"
            )
        if stored is not None:
            stored[len(indices)] = result
        indices.append(index)
    if not indices:
        raise broken_error(broken)
    chosen = torch.tensor(indices)
    pixels = files.subset(chosen) if stored is None else torch.from_numpy(stored[: len(chosen)])
    return Readable(pixels, chosen, broken)


def decoded(files: Files) -> Iterator[Pixels | str]:
    """Yields the pixels (C, H, W) of each file, or the reason why it can't be read."""
    options = loader_options(len(files))
    for chunk in DataLoader(files, CHUNK, generator=torch.Generator(), **options):
        yield from chunk


def broken_error(broken: Mapping[Any, str], *, skippable: bool = False) -> ValueError:
    """Returns an error that names all broken files, however many, so that they can be corrected at once.

    With `skippable` it names the options by which they can be skipped.
    """
    remedy = "check the paths, export the images again, or leave them out"
    if skippable:
        remedy += ", for instance with --skip-broken, in Python read_folder(..., skip_broken=True)"
    return ValueError(
        f"{list_broken(broken, most=len(broken))}; expected {EXPECTED} images: {remedy}"
    )


def memory_limit() -> int:
    """Returns the bytes of decoded pixels above which a folder is read as it is needed."""
    return _setting("DAEDL_MEMORY", MEMORY, "MiB of decoded images") << 20


def loader_options(files: int) -> dict[str, Any]:
    """Returns arguments of a DataLoader that decodes `files` files.

    Forked workers need no `if __name__ == "__main__"` in users' scripts. Where forking is not safe, none are
    started by default.
    """
    unsafe = sys.platform != "linux" or multiprocessing.current_process().daemon
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    default = 0 if unsafe or files < MANY else min(MAX_WORKERS, cores)
    workers = _setting("DAEDL_WORKERS", default, "worker processes")
    context = "fork" if workers and sys.platform == "linux" else None
    return {"num_workers": workers, "multiprocessing_context": context, "collate_fn": list}


def name_some(names: Sequence[Any], most: int = NAMED) -> str:
    """Joins at most `most` names and states the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def list_broken(broken: Mapping[Any, str], noun: str = "images", most: int = NAMED) -> str:
    """Names at most `most` of the broken inputs, with the reasons."""
    if len(broken) == 1:
        ((file, reason),) = broken.items()
        return f"{file} can't be read ({reason})"
    named = [f"{file} ({reason})" for file, reason in broken.items()]
    return f"{len(broken):,} {noun} can't be read: {name_some(named, most)}"


def _setting(name: str, default: int, meaning: str) -> int:
    """Returns the value of an environment variable."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise ValueError(
            f"{name} is {text!r}; expected a whole number of {meaning}, such as {default}"
        )
    return int(text)
