"""A folder of PNG or JPEG images, one subfolder for each class: anybody's own data."""

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
    """Images of `path`/<class>/*.png, *.jpg, *.jpeg, in alphabetical order.

    What is hidden, that is has a name that starts with a dot, is left out. What is transparent becomes
    white.

    Args:
        channels: 1 (grey) or 3 (colour); images are converted.
        size: height and width that images are resized to, whatever their proportions; None if they have
            the same size already.
        class_names: subfolders in the order of the labels, e.g. those of the training set; by default
            all subfolders, in alphabetical order.
        labelled: False takes every image in and below `path`, all with label 0 and without class names.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no folder at {folder}; expected a folder of images: look at the path"
        )
    if not labelled:
        images = read_images(pictures_in(folder), channels=channels, size=size, resize=resize)
        labels = torch.zeros(len(images), dtype=torch.int64)
        return ImageSet(images, labels, folder.name, split)
    names = _classes(folder, class_names)
    _tell_strays(folder, names)
    files = [_files(_inside(folder / name), folder / name) for name in names]
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
    """The images (N, C, H, W), uint8, of PNG or JPEG `files`."""
    shape = (size, size) if isinstance(size, int) else size
    if channels not in MODES or (shape is not None and min(shape) < 1):
        raise ValueError(
            f"channels is {channels} and size {size}; expected 1 channel for grey or 3 for colour images, "
            "and a size of at least 1"
        )
    if not files:
        raise ValueError("there are no image files; expected at least one: pass PNG or JPEG files")
    images = [_read(Path(file), channels, shape, resize) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise ValueError(
                f"{file} has {image.shape[1]}x{image.shape[2]} pixels but {files[0]} "
                f"{images[0].shape[1]}x{images[0].shape[2]}; expected images of one size: give the size "
                "that they are to be resized to"
            )
    return torch.stack(images)


def _classes(folder: Path, wanted: Sequence[str] | None) -> tuple[str, ...]:
    found = sorted(each.name for each in _inside(folder) if each.is_dir())
    if not found:
        raise ValueError(
            f"{folder} has no subfolder; expected one for each class, named after it, with its images: "
            "sort the images into subfolders; only images without labels, which are unknown, need none"
        )
    if wanted is None:
        return tuple(found)
    if missing := sorted(set(wanted) ^ set(found)):
        raise ValueError(
            f"{folder} has the subfolders {', '.join(found)}; expected {', '.join(wanted)}, the classes "
            f"that the labels stand for: add, remove or rename {', '.join(missing)}"
        )
    return tuple(wanted)


def _tell_strays(folder: Path, names: Sequence[str]) -> None:
    """Warn of images that no class has, as they lie beside the classes' folders or deeper in them."""
    deeper = (each for name in names for each in below(folder / name))
    strays = [
        file
        for file in (*_inside(folder), *(each for each in deeper if each.parent.parent != folder))
        if file.suffix.lower() in SUFFIXES
    ]
    if strays:
        warnings.warn(
            f"{len(strays)} images in {folder} are left out, {min(strays)} the first of them; expected "
            "every image right in the folder of its class: move them there",
            DataWarning,
            stacklevel=3,
        )


def pictures_in(folder: Path) -> list[Path]:
    """Returns the pictures in and below `folder`, sorted by path; warns of other files."""
    return _files(below(folder), folder)


def below(folder: Path) -> list[Path]:
    """Everything in and below `folder` that isn't hidden; links are followed, each folder once."""
    found, visited = [], set()
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (real := os.path.realpath(place)) in visited:
            folders.clear()
            continue
        visited.add(real)
        found += [Path(place, name) for name in (*folders, *files) if not name.startswith(".")]
    return found


def _raise(error: OSError) -> None:
    """A folder that can't be looked into would be left out in silence."""
    raise error


def _inside(folder: Path) -> list[Path]:
    """What lies right in `folder` and isn't hidden."""
    return [each for each in folder.iterdir() if not each.name.startswith(".")]


def _files(candidates: Iterable[Path], folder: Path) -> list[Path]:
    files = sorted(each for each in candidates if each.is_file())
    images = [each for each in files if each.suffix.lower() in SUFFIXES]
    if not images:
        raise ValueError(
            f"{folder} holds {len(files)} files, none of them PNG or JPEG; expected at least one image: "
            "add images or remove the folder"
        )
    if others := sorted(set(files) - set(images)):
        warnings.warn(
            f"{len(others)} files in {folder} are left out, {others[0].name} the first of them; expected "
            "PNG or JPEG: convert them if they are images",
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
            # Of notes in the file that can't be read; they name no file, and the image is what counts.
            warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
            # Pillow only warns of an image so large that it may be meant to fill the memory.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{file} is refused: {error}; expected a picture of at most {Image.MAX_IMAGE_PIXELS:,} "
            "pixels: make it smaller"
        ) from error
    # Decoders fail on damaged images in many ways, SyntaxError and struct.error among them.
    except Exception as error:
        raise ValueError(
            f"{file} can't be read ({error}); expected a PNG or JPEG image: export it again or remove it"
        ) from error
