"""Images at a path: a folder or a .npz file, converted for a classifier."""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from daedl.data.arrays import read_npz
from daedl.data.folder import read_folder
from daedl.data.images import ImageSet
from daedl.data.preprocess import Preprocess, Resize

# Height and width that pictures in a folder are resized to by default (chosen: CIFAR's, quick to train on).
FOLDER_SIZE = 32


def read(
    path: Path,
    *,
    channels: int | None = None,
    size: int | tuple[int, int] | None = None,
    resize: Resize = "stretch",
    labelled: bool = True,
) -> ImageSet:
    """Reads a folder of pictures or a .npz file.

    Arguments:
        channels, size: what images are converted to. By default pictures in a folder become colour of
            32 x 32 pixels; arrays keep their channels, and become square if they aren't.
        resize: see `Preprocess`.
        labelled: False takes every picture in and below a folder, or the images of a .npz file alone.
    """
    if path.is_dir():
        return read_folder(
            path,
            channels=channels or 3,
            size=size or FOLDER_SIZE,
            resize=resize,
            labelled=labelled,
        )
    if path.suffix.lower() != ".npz":
        arrived = "is a file" if path.exists() else "doesn't exist"
        raise FileNotFoundError(
            f"{path} {arrived}; expected a folder of images or a .npz file: check the path"
        )
    found = read_npz(path, labelled=labelled)
    return found.converted(channels or found.shape[0], size or max(found.shape[1:]))


def read_for(
    path: Path, preprocess: Preprocess, class_names: Sequence[str], labelled: bool = True
) -> ImageSet:
    """Reads the images at `path` with the channels and size of `preprocess`.

    Labels become the positions in `class_names` of the classes' own names; some classes may be missing.
    """
    found = read(
        path,
        channels=preprocess.channels,
        size=preprocess.size,
        resize=preprocess.resize,
        labelled=labelled,
    )
    return _relabelled(found, class_names, path) if labelled else found


def _relabelled(found: ImageSet, class_names: Sequence[str], path: Path) -> ImageSet:
    own = found.class_names
    if own is None:
        if int(found.labels.max()) >= len(class_names):
            raise ValueError(
                f"labels of {path} go up to {int(found.labels.max())}; expected 0 to "
                f"{len(class_names) - 1} for the classifier's {len(class_names)} classes: choose data of "
                "these classes"
            )
        # Folders named by numbers are sorted as text: 10 comes before 2.
        numbers = [str(number) for number in range(len(class_names))]
        own = tuple(numbers if set(class_names) == set(numbers) else class_names)
    positions = {_composed(name): position for position, name in enumerate(class_names)}
    if foreign := sorted(name for name in own if _composed(name) not in positions):
        raise ValueError(
            f"{path} has classes that the classifier doesn't know ({', '.join(foreign)}); expected some of "
            f"{', '.join(class_names)}: rename or remove the others"
        )
    order = torch.tensor([positions[_composed(name)] for name in own])
    return replace(found, labels=order[found.labels], class_names=tuple(class_names))


def _composed(name: str) -> str:
    """Composes accented letters: macOS writes names of folders decomposed."""
    return unicodedata.normalize("NFC", name)
