"""Reads folders of PNG or JPEG images, with one subfolder per class."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from daedl.checks import DataWarning
from daedl.data.images import ImageSet
from daedl.data.pictures import MODES, pixels_of
from daedl.data.preprocess import Resize

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")


def read_folder(
    path: str | Path,
    *,
    channels: int = 3,
    size: int | tuple[int, int] | None = 32,
    resize: Resize = "stretch",
    class_names: Sequence[str] | None = None,
    labelled: bool = True,
    split: str = "test",
) -> ImageSet:
    """Reads `path`/<class>/*.png, *.jpg, *.jpeg, in alphabetical order.

    Hidden files and folders, whose names start with a dot, are ignored. Transparent pixels become white.

    Arguments:
        channels: 1 (grey) or 3 (colour); images are converted.
        size: height and width to resize to; None if all images have the same size.
        resize: see `Preprocess`.
        class_names: subfolders in the order of the labels, e.g. those of the training set; by default
            all subfolders, in alphabetical order.
        labelled: False reads all images in and below `path`, with label 0 and without class names.
        split: name of the split.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no folder at {folder}; expected a folder of images: check the path"
        )
    if not labelled:
        images = read_images(pictures_in(folder), channels=channels, size=size, resize=resize)
        labels = torch.zeros(len(images), dtype=torch.int64)
        return ImageSet(images, labels, folder.name, split)
    names = _find_classes(folder, class_names)
    _warn_of_strays(folder, names)
    files = [_select_images(_list(folder / name), folder / name) for name in names]
    labels = torch.repeat_interleave(torch.tensor([len(each) for each in files]))
    images = read_images(
        [file for each in files for file in each], channels=channels, size=size, resize=resize
    )
    return ImageSet(images, labels, folder.name, split, names)


def read_images(
    files: Sequence[str | Path],
    *,
    channels: int = 3,
    size: int | tuple[int, int] | None = 32,
    resize: Resize = "stretch",
) -> Tensor:
    """Reads PNG or JPEG `files` as images (N, C, H, W), uint8."""
    shape = (size, size) if isinstance(size, int) else size
    if channels not in MODES or (shape is not None and min(shape) < 1):
        raise ValueError(
            f"channels is {channels} and size {size}; expected 1 channel for grey or 3 for colour images, "
            "and a size of at least 1"
        )
    if not files:
        raise ValueError("the list of files is empty; expected at least one PNG or JPEG file")
    images = [_read(Path(file), channels, shape, resize) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise ValueError(
                f"{file} has {image.shape[1]}x{image.shape[2]} pixels but {files[0]} "
                f"{images[0].shape[1]}x{images[0].shape[2]}; expected images of the same size: pass a size "
                "to resize to"
            )
    return torch.stack(images)


def _find_classes(folder: Path, class_names: Sequence[str] | None) -> tuple[str, ...]:
    subfolders = sorted(each.name for each in _list(folder) if each.is_dir())
    if not subfolders:
        raise ValueError(
            f"{folder} has no subfolders; expected one subfolder of images per class, named after the "
            "class: sort the images into subfolders. Only OOD images need no subfolders"
        )
    if class_names is None:
        return tuple(subfolders)
    if different := sorted(set(class_names) ^ set(subfolders)):
        raise ValueError(
            f"{folder} has the subfolders {', '.join(subfolders)}; expected {', '.join(class_names)}, the "
            f"names of the classes: add, remove or rename {', '.join(different)}"
        )
    return tuple(class_names)


def _warn_of_strays(folder: Path, names: Sequence[str]) -> None:
    """Warns of ignored images: those next to the class folders, and those in nested folders."""
    nested = (each for name in names for each in _walk(folder / name))
    strays = [
        file
        for file in (*_list(folder), *(each for each in nested if each.parent.parent != folder))
        if file.suffix.lower() in SUFFIXES
    ]
    if strays:
        warnings.warn(
            f"{len(strays)} images in {folder} are ignored, the first is {min(strays)}; expected every "
            "image directly in the folder of its class: move them there",
            DataWarning,
            stacklevel=3,
        )


def pictures_in(folder: Path) -> list[Path]:
    """Returns the images in and below `folder`, sorted by path; warns of other files."""
    return _select_images(_walk(folder), folder)


def _walk(folder: Path) -> list[Path]:
    """Returns all files and folders below `folder` except hidden ones; follows links, each folder once."""
    paths, visited = [], set()
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (real := os.path.realpath(parent)) in visited:
            folders.clear()
            continue
        visited.add(real)
        paths += [Path(parent, name) for name in (*folders, *files) if not name.startswith(".")]
    return paths


def _raise(error: OSError) -> None:
    """Raises the error of an unreadable folder, which os.walk would skip silently."""
    raise error


def _list(folder: Path) -> list[Path]:
    """Returns the entries of `folder` except hidden ones."""
    return [each for each in folder.iterdir() if not each.name.startswith(".")]


def _select_images(paths: Iterable[Path], folder: Path) -> list[Path]:
    """Returns the images among `paths`, sorted; raises if there are none, and warns of other files."""
    files = sorted(each for each in paths if each.is_file())
    images = [each for each in files if each.suffix.lower() in SUFFIXES]
    if not images:
        raise ValueError(
            f"{folder} contains {len(files)} files, none of them PNG or JPEG; expected at least one image: "
            "add images or remove the folder"
        )
    if others := sorted(set(files) - set(images)):
        warnings.warn(
            f"{len(others)} files in {folder} are ignored, the first is {others[0].name}; expected PNG or "
            "JPEG: convert them if they are images",
            DataWarning,
            stacklevel=3,
        )
    return images


def _read(file: Path, channels: int, shape: tuple[int, int] | None, resize: Resize) -> Tensor:
    with _readable(file), Image.open(file, formats=FORMATS) as opened:
        return pixels_of(opened, channels, shape, resize)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # Pillow's warnings about damaged metadata do not name the file, and the pixels are intact.
            warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
            # Pillow only warns of possible decompression bombs.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{file} is too large: {error}; expected at most {Image.MAX_IMAGE_PIXELS:,} pixels: resize it"
        ) from error
    # Decoders raise many types of errors for damaged images, including SyntaxError and struct.error.
    except Exception as error:
        raise ValueError(
            f"{file} can't be read ({error}); expected a PNG or JPEG image: export it again or remove it"
        ) from error
