"""`daedl predict`: predict classes and uncertainties of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from daedl.cli import results
from daedl.cli.common import Device
from daedl.cli.images import ModelFile, SkipBroken, load_model, require_preprocess
from daedl.data.files import Files, broken_error, decode_all
from daedl.data.folder import Listing, count_suffixes


def predict(
    model: ModelFile,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES", help="PNG, JPEG, BMP, WebP or TIFF files, or folders of them."
        ),
    ],
    form: results.FormatOption = results.Format.TABLE,
    out: results.OutOption = None,
    skip_broken: SkipBroken = False,
    device: Device = "cpu",
) -> None:
    """Predict classes and uncertainties of images.

    Larger uncertainties mean less certain predictions. A calibrated model also
    reports whether to accept each prediction, and if not, why. Images that can't
    be read are reported on stderr and skipped; the exit status is then 1 unless
    --skip-broken is given.
    """
    if out is not None:
        results.require_output_file(out, model=model)
    classifier = load_model(model, device)
    files, skipped, broken = _expand_folders(images)
    if skipped:
        _echo(f"Warning: skipped {skipped}", "yellow")
    if not files:
        raise broken_error(broken)
    readable = decode_all(Files.of(files, require_preprocess(classifier)))
    broken |= readable.broken
    if broken:
        _echo(f"{'Warning' if skip_broken else 'Error'}: {broken_error(broken)}", "red")
        skipped = ", ".join(filter(None, (f"{len(broken)} unreadable", skipped)))
    prediction = classifier.predict(readable.pixels)
    records = [
        {"file": str(files[index]), **record}
        for index, record in zip(readable.indices.tolist(), prediction.records(), strict=True)
    ]
    results.write_records(records, _table(records), form, out)
    if skipped:
        _echo(f"Predicted {len(records)} images; skipped {skipped}")
    if broken and not skip_broken:
        raise typer.Exit(1)


def _expand_folders(sources: Sequence[str]) -> tuple[list[Path], str, dict[Path, str]]:
    """Replaces folders by their images.

    Returns all files, a description of files that are skipped, and folders without images as broken files.
    """
    files: list[Path] = []
    others: list[Path] = []
    broken: dict[Path, str] = {}
    hidden = 0
    for source in map(Path, sources):
        if not source.is_dir():
            files.append(source)
            continue
        listing = Listing.of(source)
        files += listing.images
        others += listing.others
        hidden += len(listing.hidden)
        if not listing.images:
            broken[source] = "a folder without images"
    parts = [f"{len(others)} other files ({count_suffixes(others)})"] if others else []
    parts += [f"{hidden} hidden files or folders"] if hidden else []
    return list(dict.fromkeys(files)), ", ".join(parts), broken


def _echo(message: str, colour: str | None = None) -> None:
    typer.secho(results.printable(message), fg=colour, err=True)


def _table(records: Sequence[results.Record]) -> Table:
    head = [name for name in records[0] if name not in ("label", "probs")]
    rows = [[record[name] for name in head] for record in records]
    return results.make_table(head, rows, texts=2)
