"""The images of `daedl train`: reading, validation and the split into training and held-out images."""

from typing import Any, TypeVar

import torch
import typer

from daedl.backbones import Pretrained
from daedl.cli.common import report_warnings
from daedl.cli.outcome import shorten
from daedl.data import ImageSet, Labelled
from daedl.data.read import read
from daedl.storage import expand_user

TABLES = (".csv", ".tsv")  # suffixes of files for --text and --target
Set = TypeVar("Set", bound=Labelled)


def read_training_images(
    data: str,
    size: int | None,
    grey: bool | None,
    pretrained: Pretrained | None,
    skip_broken: bool,
) -> ImageSet:
    """Reads images of at least two classes; without `grey`, converts them to grey if all of them are grey."""
    path = expand_user(data)
    if path.is_file() and path.suffix.lower() in TABLES:
        raise ValueError(
            f"{data} is a table, but neither --text nor --target was given; expected a folder of images or a "
            ".npz file, or one of them: pass --text COLUMN --label COLUMN to classify texts, or "
            "--target COLUMN to predict a number"
        )
    options: dict[str, Any] = {"channels": None if grey is None else 1 if grey else 3, "size": size}
    if pretrained is not None:
        expected = pretrained.preprocess
        options = {name: getattr(expected, name) for name in ("channels", "size", "resize")}
    with report_warnings():
        images = read(path, skip_broken=skip_broken, **options)
    if images.num_classes < 2:
        raise ValueError(
            f"{data} has one class; expected at least two: add a subfolder, or a label, per class"
        )
    present = torch.unique(images.labels)
    if images.class_names is None and len(present) != images.num_classes:
        shown = ", ".join(map(str, present[:5].tolist())) + (", ..." if len(present) > 5 else "")
        raise ValueError(
            f"labels of {data} are {shown}; expected 0 to {len(present) - 1} for its {len(present)} "
            "classes: renumber them with numpy.unique(labels, return_inverse=True)[1]"
        )
    if pretrained is None and grey is None and images.is_grey():
        return images.converted(1, images.shape[1])
    return images


def split(images: Set, validation: float, seed: int) -> tuple[Set, Set]:
    """Returns training data, of every class, and held-out data with the same share of each."""
    held_out, training = images.random_split(
        max(1, round(validation * len(images))), seed, stratify=True
    )
    counts = torch.bincount(training.labels, minlength=images.num_classes).tolist()
    if missing := [name for name, count in zip(images.names, counts, strict=True) if count == 0]:
        raise ValueError(
            f"no training {images.noun} of {shorten(missing)} remain after holding out {len(held_out)} of "
            f"{len(images)} {images.noun}; expected some of every class: add more, or hold out fewer with "
            "--validation"
        )
    if single := [name for name, count in zip(images.names, counts, strict=True) if count == 1]:
        typer.secho(
            f"Warning: only one training sample of {shorten(single)}; expected several per class, because "
            f"one does not show how the class varies: add {images.noun}",
            fg="yellow",
            err=True,
        )
    return training, held_out
