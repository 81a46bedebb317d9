"""Reads images from a folder or a .npz file, converted for a classifier."""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from daedl.checks import require_targets
from daedl.data.arrays import read_npz
from daedl.data.files import Files, name_some
from daedl.data.folder import find_classes, list_classes, read_folder
from daedl.data.images import ImageSet
from daedl.data.pictures import Resize
from daedl.data.preprocess import Preprocess

# Default height and width of pictures in a folder (chosen: as CIFAR, fast to train on).
FOLDER_SIZE = 32


def read(
    path: Path,
    *,
    channels: int | None = None,
    size: int | tuple[int, int] | None = None,
    resize: Resize = "stretch",
    labelled: bool = True,
    skip_broken: bool = False,
) -> ImageSet:
    """Reads a folder of pictures or a .npz file.

    Arguments:
        channels, size: channels and size to convert to. By default, pictures in a folder are converted to
            colour and 32 x 32 pixels; arrays keep their channels and are resized to a square.
        resize: see `Preprocess`.
        labelled: False reads all pictures in and below a folder, or only the images of a .npz file.
        skip_broken: see `read_folder`.
    """
    if path.is_dir():
        return read_folder(
            path,
            channels=channels or 3,
            size=size or FOLDER_SIZE,
            resize=resize,
            labelled=labelled,
            skip_broken=skip_broken,
        )
    if path.suffix.lower() != ".npz":
        arrived = "is a file" if path.exists() else "doesn't exist"
        raise FileNotFoundError(
            f"{path} {arrived}; expected a folder of images or a .npz file: check the path"
        )
    images = read_npz(path, labelled=labelled)
    return images.converted(channels or images.shape[0], size or max(images.shape[1:]))


def read_for(
    path: Path,
    preprocess: Preprocess,
    class_names: Sequence[str],
    labelled: bool = True,
    skip_broken: bool = False,
) -> ImageSet:
    """Reads the images at `path` with the channels and size of `preprocess`.

    Labels are mapped by name to positions in `class_names`; some classes may be missing.
    """
    images = read(
        path,
        channels=preprocess.channels,
        size=preprocess.size,
        resize=preprocess.resize,
        labelled=labelled,
        skip_broken=skip_broken,
    )
    return _relabel(images, class_names, path) if labelled else images


def list_for(path: Path, preprocess: Preprocess, class_names: Sequence[str]) -> ImageSet:
    """Lists the images in the subfolders of `path` as `read_for`, without decoding them."""
    names = find_classes(path, None)
    files, labels = list_classes(path, names)
    images = ImageSet(Files.of(files, preprocess), labels, path.name, "train", names)
    return _relabel(images, class_names, path)


def _relabel(images: ImageSet, class_names: Sequence[str], path: Path) -> ImageSet:
    own_names = images.class_names
    if own_names is None:
        require_targets(images.labels, len(class_names), len(images), f" of {path}")
        # Folders named by numbers are sorted as text: 10 before 2.
        numbers = [str(number) for number in range(len(class_names))]
        own_names = tuple(numbers if set(class_names) == set(numbers) else class_names)
    positions = {_compose(name): position for position, name in enumerate(class_names)}
    if unknown := sorted(name for name in own_names if _compose(name) not in positions):
        raise ValueError(
            f"{path} has classes unknown to the classifier ({name_some(unknown)}); expected only "
            f"{name_some(class_names)}: rename or remove the others"
        )
    order = torch.tensor([positions[_compose(name)] for name in own_names])
    return replace(images, labels=order[images.labels], class_names=tuple(class_names))


def _compose(name: str) -> str:
    """Composes accented letters, which macOS decomposes in file names."""
    return unicodedata.normalize("NFC", name)
