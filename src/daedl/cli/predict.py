"""`daedl predict`: predict classes and uncertainties of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from torch import Tensor

from daedl.checks import NotFittedError
from daedl.cli.common import Device, Threads, report_errors, report_warnings, using_threads
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
from daedl.data import Preprocess
from daedl.data.folder import pictures_in
from daedl.data.loaders import read_picture


def predict(
    model: ModelFile,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGES", help="PNG or JPEG files, or folders of them.")
    ],
    form: FormatOption = Format.TABLE,
    out: OutOption = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Predict classes and uncertainties of images.

    Larger uncertainties mean less certain predictions. A calibrated model also
    reports whether to accept each prediction, and if not, why. Unreadable images
    are reported on stderr and skipped; the exit status is then 1.
    """
    with report_errors(OSError, ValueError, NotFittedError), using_threads(threads):
        if out is not None:
            require_output_file(out, model=model)
        classifier = load_model(model, device)
        files, failures = _expand_folders(images)
        pixels, unreadable = _read(files, require_preprocess(classifier))
        failures += unreadable
        for failure in failures:
            typer.secho(f"Error: {printable(failure)}", fg="red", err=True)
        if not pixels:
            raise ValueError("no image could be read; expected at least one PNG or JPEG image")
        prediction = classifier.predict(torch.stack(list(pixels.values())))
        records = [
            {"file": str(file), **record}
            for file, record in zip(pixels, prediction.records(), strict=True)
        ]
        write_records(records, _table(records), form, out)
    if failures:
        raise typer.Exit(1)


def _expand_folders(sources: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Replaces folders by the images in and below them; returns files and the errors of empty folders."""
    files: list[Path] = []
    failures = []
    for source in map(Path, sources):
        try:
            with report_warnings():
                files += pictures_in(source) if source.is_dir() else [source]
        except ValueError as error:
            failures.append(str(error))
    return list(dict.fromkeys(files)), failures


def _read(files: Sequence[Path], preprocess: Preprocess) -> tuple[dict[Path, Tensor], list[str]]:
    """Returns images (C, H, W), uint8, by file, and the errors of unreadable files."""
    pixels, failures = {}, []
    for file in files:
        try:
            pixels[file] = read_picture(file, preprocess)
        except ValueError as error:
            failures.append(str(error))
    return pixels, failures


def _table(records: Sequence[Record]) -> Table:
    head = [name for name in records[0] if name not in ("label", "probs")]
    rows = [[record[name] for name in head] for record in records]
    return make_table(head, rows, texts=2)
