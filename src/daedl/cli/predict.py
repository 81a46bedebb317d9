"""`daedl predict`: classes and uncertainties of one's own images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from torch import Tensor

from daedl.checks import NotFittedError
from daedl.classifier import Classifier
from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.images import ModelFile, class_names, image_shape, predict_images
from daedl.cli.results import (
    Format,
    FormatOption,
    OutOption,
    Record,
    make_table,
    printable,
    require_output_file,
    write_records,
)
from daedl.data import read_images
from daedl.data.folder import SUFFIXES, below
from daedl.prediction import Prediction


def predict(
    model: ModelFile,
    images: Annotated[list[str], typer.Argument(help="PNG or JPEG files, or folders of them.")],
    form: FormatOption = Format.TABLE,
    out: OutOption = None,
    threads: Threads = None,
) -> None:
    """Say for each image which class it shows, and how little the model knows about it.

    Uncertainties are larger where less is known. A model that was calibrated also says whether to accept
    the prediction, and why not. An image that can't be read is told on stderr, the
    others are predicted, and the exit status is 1.
    """
    with report_errors(OSError, ValueError, NotFittedError), using_threads(threads):
        if out is not None:
            require_output_file(out, model=model)
        classifier = Classifier.load(model)
        files, empty = _expanded(images)
        read, unreadable = _read(files, *image_shape(classifier))
        for failure in (*empty, *unreadable):
            typer.secho(f"Error: {printable(failure)}", fg="red", err=True)
        if not read:
            raise ValueError("there is no image to predict; expected at least one that can be read")
        prediction = predict_images(classifier, torch.stack(list(read.values())))
        records = _records(list(read), prediction, class_names(classifier))
        write_records(records, _table(records), form, out)
    if empty or unreadable:
        raise typer.Exit(1)


def _expanded(sources: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files among `sources` and in and below the folders among them; which folders have none."""
    files, empty = [], []
    for source in map(Path, sources):
        found = [source]
        if source.is_dir():
            images = (each for each in below(source) if each.suffix.lower() in SUFFIXES)
            found = sorted(each for each in images if each.is_file())
        files += found
        if not found:
            empty.append(f"{source} holds no PNG or JPEG; expected a folder of images")
    return list(dict.fromkeys(files)), empty


def _read(files: Sequence[Path], channels: int, size: int) -> tuple[dict[Path, Tensor], list[str]]:
    """Images (C, H, W), uint8, by their file; and why others can't be read."""
    read, failures = {}, []
    for file in files:
        try:
            read[file] = read_images([file], channels=channels, size=size)[0]
        except ValueError as error:
            failures.append(str(error))
    return read, failures


def _records(files: Sequence[Path], prediction: Prediction, names: Sequence[str]) -> list[Record]:
    """One record an image, with those uncertainties that the method has."""
    fields = ("aleatoric", "epistemic", "density_score", "log_density")
    found = {name: getattr(prediction, name) for name in fields}
    columns = {name: values.tolist() for name, values in found.items() if values is not None}
    if prediction.thresholds is not None:
        columns |= {"accept": prediction.accept.tolist(), "reason": prediction.reason}
    rows = zip(files, prediction.labels.tolist(), prediction.probs.tolist(), strict=True)
    return [
        {
            "file": str(file),
            "class": names[label],
            "probability": probs[label],
            **{name: values[number] for name, values in columns.items()},
            "probabilities": dict(zip(names, probs, strict=True)),
        }
        for number, (file, label, probs) in enumerate(rows)
    ]


def _table(records: Sequence[Record]) -> Table:
    head = [name for name in records[0] if name != "probabilities"]
    lines = [[record[name] for name in head] for record in records]
    return make_table([name.replace("_", " ") for name in head], lines, texts=2)
