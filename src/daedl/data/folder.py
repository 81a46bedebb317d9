"""Reads folders of images, with one subfolder per class."""

import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from PIL.Image import Image
from torch import Tensor

from daedl.checks import DataWarning
from daedl.data.files import Files, broken_error, decode_all, name_some
from daedl.data.images import ImageSet
from daedl.data.pictures import EXPECTED, SUFFIXES, Resize


def read_folder(
    path: str | Path,
    *,
    channels: int = 3,
    size: int | tuple[int, int] | None = 32,
    resize: Resize = "stretch",
    class_names: Sequence[str] | None = None,
    labelled: bool = True,
    split: str = "test",
    skip_broken: bool = False,
) -> ImageSet:
    """Reads the images in `path`/<class>/, in alphabetical order; see `daedl.data.pictures` for formats.

    Every file is decoded once, so that all broken files are named at once. Images of more than 2 GiB (the
    environment variable DAEDL_MEMORY, in MiB) are not kept in memory: worker processes (their number is
    DAEDL_WORKERS) decode them again in each pass, with the same results. Hidden files and folders, whose
    names start with a dot, are ignored.

    Arguments:
        channels: 1 (grey) or 3 (colour); images are converted.
        size: height and width to resize to; None if all images have the same size.
        resize: see `Preprocess`.
        class_names: subfolders in the order of the labels, e.g. those of the training set; by default
            all subfolders, in alphabetical order.
        labelled: False reads all images in and below `path`, with label 0 and without class names.
        split: name of the split.
        skip_broken: whether broken files are skipped with a warning instead of an error.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no folder at {folder}; expected a folder of images: check the path"
        )
    if labelled:
        names: tuple[str, ...] | None = find_classes(folder, class_names)
        files, labels = list_classes(folder, names or ())
    else:
        names, files = None, pictures_in(folder)
        labels = torch.zeros(len(files), dtype=torch.int64)
    readable = decode_all(_files(files, channels, size, resize))
    readable.require_all(skip_broken)
    return ImageSet(readable.pixels, labels[readable.indices], folder.name, split, names)


def read_images(
    files: Sequence[str | Path],
    *,
    channels: int = 3,
    size: int | tuple[int, int] | None = 32,
    resize: Resize = "stretch",
) -> Tensor:
    """Reads image `files` into memory: (N, C, H, W), uint8."""
    readable = decode_all(_files(files, channels, size, resize), limit=math.inf)
    if readable.broken:
        raise broken_error(readable.broken)
    return cast(Tensor, readable.pixels)


@dataclass(frozen=True)
class Listing:
    """Files and folders in and below a folder, sorted by path.

    Attributes:
        images: files with the suffix of an image.
        others: other files.
        hidden: hidden files and folders; the contents of hidden folders are not listed.
    """

    images: tuple[Path, ...]
    others: tuple[Path, ...]
    hidden: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path) -> "Listing":
        """Lists `folder`; follows links, each folder once."""
        kinds: tuple[list[Path], list[Path], list[Path]] = [], [], []
        images, others, hidden = kinds
        visited = set()
        for parent, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
            if (real := os.path.realpath(parent)) in visited:
                folders.clear()
                continue
            visited.add(real)
            hidden += [Path(parent, name) for name in (*folders, *files) if name.startswith(".")]
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for path in (Path(parent, name) for name in files if not name.startswith(".")):
                # A dangling link is listed, and reported when it is read. Reading from a pipe would block.
                readable = path.is_file() or not path.exists()
                is_image = readable and path.suffix.lower() in SUFFIXES
                (images if is_image else others).append(path)
        return cls(*(tuple(sorted(each)) for each in kinds))


def count_suffixes(files: Sequence[Path]) -> str:
    """Counts files by suffix, as in "2 .mp4, 1 .txt"."""
    counts = Counter(path.suffix.lower() or "without suffix" for path in files)
    return name_some([f"{count} {suffix}" for suffix, count in counts.most_common()])


def pictures_in(folder: Path) -> list[Path]:
    """Returns the images in and below `folder`, sorted by path; warns of other files."""
    listing = Listing.of(folder)
    if not listing.images:
        raise _no_images([folder])
    _warn_of_others(folder, listing)
    return list(listing.images)


def expand_folders(data: Any) -> list[Any] | None:
    """Returns PIL images and paths, with folders replaced by their pictures; None for other `data`."""
    items = list(data) if isinstance(data, list | tuple) else [data]
    if not items or not all(isinstance(each, str | Path | Image) for each in items):
        return None
    pictures: list[Any] = []
    for each in items:
        if isinstance(each, str | Path) and Path(each).is_dir():
            pictures += pictures_in(Path(each))
        else:
            pictures.append(Path(each) if isinstance(each, str) else each)
    return pictures


def _files(
    paths: Sequence[str | Path],
    channels: int,
    size: int | tuple[int, int] | None,
    resize: Resize,
) -> Files:
    shape = (size, size) if isinstance(size, int) else size
    return Files(tuple(map(Path, paths)), channels, shape, resize)


def find_classes(folder: Path, class_names: Sequence[str] | None) -> tuple[str, ...]:
    subfolders = sorted(each.name for each in _list(folder) if each.is_dir())
    if not subfolders:
        raise ValueError(
            f"{folder} has no subfolders; expected one subfolder of images per class, named after the "
            "class: sort the images into subfolders. Only OOD images need no subfolders"
        )
    # Python decodes invalid bytes of names to surrogates, which can be neither printed nor exported.
    if invalid := [
        os.fsencode(each) for each in subfolders if any("\ud800" <= c <= "\udfff" for c in each)
    ]:
        raise ValueError(
            f"{folder} has subfolders whose names are not UTF-8: {name_some(invalid)}; expected readable "
            "names of classes: rename them"
        )
    if class_names is None:
        return tuple(subfolders)
    if different := sorted(set(class_names) ^ set(subfolders)):
        raise ValueError(
            f"{folder} has the subfolders {name_some(subfolders)}; expected {name_some(class_names)}, the "
            f"names of the classes: add, remove or rename {name_some(different)}"
        )
    return tuple(class_names)


def list_classes(folder: Path, names: Sequence[str]) -> tuple[list[Path], Tensor]:
    """Returns the images of all classes and their labels; warns of other files and of nested images."""
    listings = [Listing.of(folder / name) for name in names]
    own = [
        [file for file in listing.images if file.parent == folder / name]
        for name, listing in zip(names, listings, strict=True)
    ]
    if empty := [folder / name for name, files in zip(names, own, strict=True) if not files]:
        raise _no_images(empty)
    _warn_of_others(folder, *listings)
    files = [file for each in own for file in each]
    above = [each for each in _list(folder) if each.suffix.lower() in SUFFIXES and each.is_file()]
    nested = {file for each in listings for file in each.images}.difference(files)
    if strays := sorted([*above, *nested]):
        warnings.warn(
            f"{len(strays)} images in {folder} are ignored, the first is {strays[0]}; expected every "
            "image directly in the folder of its class: move them there",
            DataWarning,
            stacklevel=3,
        )
    return files, torch.repeat_interleave(torch.tensor([len(each) for each in own]))


def _no_images(folders: Sequence[Path]) -> ValueError:
    return ValueError(
        f"no image in {name_some(folders)}; expected at least one {EXPECTED} file: add images or remove "
        "the folder"
    )


def _warn_of_others(folder: Path, *listings: Listing) -> None:
    others = tuple(file for each in listings for file in each.others)
    if others:
        warnings.warn(
            f"{len(others)} files in {folder} are ignored ({count_suffixes(others)}), the first is "
            f"{others[0]}; expected {EXPECTED}: convert them if they are images",
            DataWarning,
            stacklevel=4,
        )


def _list(folder: Path) -> list[Path]:
    """Returns the entries of `folder` except hidden ones."""
    return [each for each in folder.iterdir() if not each.name.startswith(".")]


def _raise(error: OSError) -> None:
    """Raises the error of an unreadable folder, which os.walk would skip silently."""
    raise error
