"""`daedl predict`: predict classes and uncertainties of images or texts."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, cast

import typer
from rich.table import Table

from daedl.cli import results, tables
from daedl.cli.bulk import Column, EngineOption, Workers, is_bulk, predict_bulk
from daedl.cli.common import Device
from daedl.cli.images import ModelFile, SkipBroken, load_any, require_preprocess
from daedl.data import Preprocess, TextPreprocess
from daedl.data.files import Files, broken_error, decode_all, list_broken
from daedl.data.folder import Listing, count_suffixes
from daedl.engines import LOCAL
from daedl.regressor import Regressor


def predict(
    model: ModelFile,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUTS",
            help="PNG, JPEG, BMP, WebP or TIFF files, Parquet files, or folders of them; for a model of "
            "texts: texts, CSV files, or .txt files with one text per line; CSV files for a regressor.",
        ),
    ],
    form: results.FormatOption = None,
    out: results.OutOption = None,
    skip_broken: SkipBroken = False,
    column: Column = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="NAME", help="Column of Parquet files to copy; repeatable."),
    ] = None,
    engine: EngineOption = LOCAL,
    workers: Workers = None,
    device: Device = "cpu",
) -> None:
    """Predict classes and uncertainties of images or texts.

    Larger uncertainties mean less certain predictions. A calibrated model also
    reports whether to accept each prediction, and if not, why. Images that can't
    be read are reported on stderr and skipped; the exit status is then 1 unless
    --skip-broken is given.

    --out NAME.parquet writes a folder of Parquet files, for any number of images
    or of rows of Parquet files. The same command continues after an interruption.
    """
    if is_bulk(inputs, out, engine):
        options: dict[str, Any] = {
            "engine": engine,
            "workers": workers,
            "column": column,
            "keep": keep,
        }
        predict_bulk(
            model, inputs, cast(Path, out), skip_broken=skip_broken, device=device, **options
        )
        return
    if column or keep:
        raise ValueError("--column and --keep are for Parquet files; expected --out NAME.parquet")
    if out is not None:
        results.require_output_file(out, model=model)
    classifier = load_any(model, device)
    if isinstance(classifier, Regressor):
        tables.predict(classifier, inputs, form, out)
        return
    kind = require_preprocess(classifier)
    read = READERS[kind.kind](kind, inputs, skip_broken)
    prediction = classifier.predict(read.inputs)
    both = zip(read.sources, prediction.records(), strict=True)
    records = [{**source, **record} for source, record in both]
    results.write_records(records, _table(records), form, out)
    if read.skipped:
        _echo(f"Predicted {len(records)} {kind.noun}; skipped {read.skipped}")
    if read.broken and not skip_broken:
        raise typer.Exit(1)


class Read(NamedTuple):
    """Inputs, the first columns of their records, what was skipped, and whether any can't be read."""

    inputs: Any
    sources: list[results.Record]
    skipped: str = ""
    broken: bool = False


def _read_texts(kind: TextPreprocess, sources: Sequence[str], skip_broken: bool) -> Read:
    del skip_broken
    texts = [text for source in sources for text in kind.texts_of(source)]
    return Read(texts, [{"text": each} for each in texts])


def _read_images(kind: Preprocess, sources: Sequence[str], skip_broken: bool) -> Read:
    files, skipped, broken = _expand_folders(sources)
    if not files:
        raise broken_error(broken)
    readable = decode_all(Files.of(files, kind))
    broken |= readable.broken
    if broken:
        error = f"Error: {broken_error(broken, skippable=True)}"
        _echo(f"Warning: {list_broken(broken)}" if skip_broken else error, "red")
        skipped = ", ".join(filter(None, (f"{len(broken)} unreadable", skipped)))
    named: list[results.Record] = [{"file": str(files[i])} for i in readable.indices.tolist()]
    return Read(readable.pixels, named, skipped, bool(broken))


READERS: Mapping[str, Callable[[Any, Sequence[str], bool], Read]] = MappingProxyType(
    {Preprocess.kind: _read_images, TextPreprocess.kind: _read_texts}
)


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
