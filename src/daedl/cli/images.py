"""Images that a command is pointed at: a folder or an .npz file, made to fit a network."""

import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from daedl.classifier import Classifier
from daedl.cli.common import report_warnings
from daedl.data import ImageSet, read_folder, read_npz
from daedl.prediction import Prediction
from daedl.storage import expanded

# Pixels that images in a folder are resized to (chosen: as CIFAR's, quick to train on).
FOLDER_SIZE = 32
CHUNK = 512  # images that are floats at a time, chosen: bounds the memory

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A file of `daedl train`.")]


def read(
    source: str,
    split: str,
    channels: int | None = None,
    size: int | None = None,
    *,
    labelled: bool = True,
) -> ImageSet:
    """The images of `source`, a folder or a .npz file.

    Args:
        split: what errors call them.
        channels, size: what images are converted to. By default images in a folder become colour of
            32 x 32 pixels; others keep their channels, and become square if they aren't.
        labelled: False takes every image in and below a folder, or of a .npz file without labels.
    """
    path = expanded(source)
    with report_warnings():
        if path.is_dir():
            return read_folder(
                path,
                channels=channels or 3,
                size=size or FOLDER_SIZE,
                labelled=labelled,
                split=split,
            )
        if path.suffix.lower() != ".npz":
            raise FileNotFoundError(
                f"there is no folder at {source}; expected a folder of images or a .npz file: check the "
                "path"
            )
        found = read_npz(path, split, labelled=labelled)
    return found.converted(channels or found.shape[0], size or max(found.shape[1:]))


def read_known(source: str, model: Classifier) -> ImageSet:
    """Labelled test images of some or all of its classes as `model` takes them, with its labels."""
    names = class_names(model)
    found = read(source, "test", *image_shape(model))
    own = found.class_names
    if own is None:
        if int(found.labels.max()) >= len(names):
            raise ValueError(
                f"labels of {source} go up to {int(found.labels.max())}; expected 0 to "
                f"{len(names) - 1}, as the model knows {len(names)} classes: choose the data of its "
                "classes"
            )
        # Folders named by numbers are sorted as text: 10 comes before 2.
        numbers = [str(number) for number in range(len(names))]
        own = tuple(numbers if set(names) == set(numbers) else names)
    places = {_composed(name): place for place, name in enumerate(names)}
    if foreign := sorted(name for name in own if _composed(name) not in places):
        raise ValueError(
            f"{source} has classes that the model doesn't know ({', '.join(foreign)}); expected some of "
            f"{', '.join(names)}: choose the data of its classes, or rename or remove others"
        )
    order = torch.tensor([places[_composed(name)] for name in own])
    return replace(found, labels=order[found.labels], class_names=tuple(names))


def _composed(name: str) -> str:
    """Letters and accents in one: a folder's name may have them apart, as macOS writes it."""
    return unicodedata.normalize("NFC", name)


def read_unknown(source: str, model: Classifier) -> ImageSet:
    """Any images, as `model` takes them."""
    return read(source, "test", *image_shape(model), labelled=False)


def class_names(model: Classifier) -> list[str]:
    """The names of the classes that `model` knows: their numbers if it has none."""
    return model.class_names or [str(number) for number in range(model.network.num_classes)]


def image_shape(model: Classifier) -> tuple[int, int]:
    """Channels, and height and width, of the images that `model` takes."""
    match model.network.input_shape:
        case (1 | 3 as channels, height, width) if height == width:
            return channels, height
        case shape:
            raise ValueError(
                f"the model takes inputs of shape {shape}; expected square images with 1 or 3 "
                "channels: use Classifier.predict in Python for others"
            )


def predict_images(model: Classifier, images: Tensor) -> Prediction:
    """Predictions of uint8 `images` (N, C, H, W)."""
    dtype = next(model.parameters()).dtype
    chunks = torch.split(images, CHUNK)
    return Prediction.cat([model.predict(chunk.to(dtype) / 255) for chunk in chunks])
