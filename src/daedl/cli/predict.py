"""`daedl predict`: classes and uncertainties of one's own images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from torch import Tensor

from daedl.checks import NotFittedError
from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.images import ModelFile, load_model, require_preprocess
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
from daedl.data import Preprocess, read_images
from daedl.data.folder import SUFFIXES, below


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
        classifier = load_model(model)
        files, empty = _expanded(images)
        read, unreadable = _read(files, require_preprocess(classifier))
        for failure in (*empty, *unreadable):
            typer.secho(f"Error: {printable(failure)}", fg="red", err=True)
        if not read:
            raise ValueError("there is no image to predict; expected at least one that can be read")
        prediction = classifier.predict(torch.stack(list(read.values())))
        records = [
            {"file": str(file), **record}
            for file, record in zip(read, prediction.records(), strict=True)
        ]
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


def _read(files: Sequence[Path], preprocess: Preprocess) -> tuple[dict[Path, Tensor], list[str]]:
    """Images (C, H, W), uint8, by their file; and why others can't be read."""
    read, failures = {}, []
    for file in files:
        try:
            read[file] = read_images(
                [file],
                channels=preprocess.channels,
                size=preprocess.size,
                resize=preprocess.resize,
            )[0]
        except ValueError as error:
            failures.append(str(error))
    return read, failures


def _table(records: Sequence[Record]) -> Table:
    head = [name for name in records[0] if name not in ("label", "probs")]
    lines = [[record[name] for name in head] for record in records]
    return make_table(head, lines, texts=2)
