"""`python -m daedl_bench data`: list, export, corrupt and draw datasets."""

from io import BytesIO
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from daedl.cli.common import report_errors, report_warnings
from daedl.data import ImageSet
from daedl.names import look_up
from daedl.storage import write_atomically
from daedl_bench import datasets, options
from daedl_bench.corruptions import FAMILIES, contact_sheet
from daedl_bench.options import DataRoot

app = typer.Typer(no_args_is_help=True, help="List, export, corrupt and draw datasets.")

SHOWN = 4  # images on a contact sheet, chosen
DOTS_PER_INCH = 84  # 2 x 2 dots per image pixel

FamilyName = Annotated[str, typer.Argument(metavar="FAMILY", help=f"{' or '.join(FAMILIES)}.")]
Download = Annotated[bool, typer.Option("--download", help="Download missing files.")]


@app.command("list")
def list_sets(data: DataRoot = None) -> None:
    """List the datasets, and which of their files are below the data root."""
    table = Table("dataset", "shape", "train", "test")
    with report_errors(OSError, ValueError):
        root = datasets.data_root(data)
        for name in (*datasets.sources(), *datasets.NOISES):
            shape = datasets.NOISES.get(name) or datasets.sources()[name].shape
            cells = (_status(name, split, root) for split in ("train", "test"))
            table.add_row(name, ", ".join(map(str, shape)), *cells)
    typer.echo(f"data root: {root}")
    Console().print(table)


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="A dataset, such as mnist or cifar10-c/fog/3.")],
    out: Annotated[Path, typer.Option(help="The .npz file to write.")],
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    data: DataRoot = None,
    download: Download = False,
) -> None:
    """Write a dataset as .npz (images, labels, class_names), for `daedl train` and `daedl evaluate`."""
    with report_errors(OSError, ValueError), report_warnings():
        if out.suffix != ".npz":
            raise ValueError(f"--out is {out}; expected a path that ends in .npz: add the suffix")
        loaded = datasets.load(name, split, data, download)
        arrays = {
            "images": loaded.images.permute(0, 2, 3, 1).numpy(),
            "labels": loaded.labels.numpy(),
        }
        if loaded.class_names:
            arrays["class_names"] = np.array(loaded.class_names)
        buffer = BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_atomically(out, buffer.getvalue())
    typer.echo(f"wrote {len(loaded):,} images of {name} ({split}) to {out}")


@app.command()
def corrupt(
    family: FamilyName,
    data: DataRoot = None,
    names: Annotated[str, typer.Option(help="Corruptions, as in fog,frost; by default all.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; by default the data root.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, help="Corrupt this many, the first ones; by default all."),
    ] = None,
    download: Download = False,
) -> None:
    """Generate a corrupted dataset from the clean test set, in the published layout; keep existing files."""
    with report_errors(OSError, ValueError), report_warnings():
        clean = _clean(family, data, download)
        clean = clean.subset(range(min(images or len(clean), len(clean))))
        folder = out or datasets.data_root(data)
        home = datasets.generate(clean, folder, family, options.names(names), seed)
    typer.echo(f"{FAMILIES[family].title} is in {home}; existing files were kept")


@app.command()
def sheet(
    family: FamilyName,
    data: DataRoot = None,
    out: Annotated[Path, typer.Option(help="The PNG file to write.")] = Path("sheet.png"),
    download: Download = False,
) -> None:
    """Draw a few test images under every corruption."""
    with report_errors(OSError, ValueError), report_warnings():
        figure = contact_sheet(_clean(family, data, download).images[:SHOWN], family)
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        write_atomically(out, buffer.getvalue())
    typer.echo(f"wrote the contact sheet to {out}")


def _clean(family: str, data: Path | None, download: bool) -> ImageSet:
    """The test set that `family` corrupts."""
    look_up(FAMILIES, family, "family of corruptions")
    return datasets.load(family.removesuffix("-c"), "test", data, download)


def _status(name: str, split: str, root: Path) -> str:
    """Whether a split is below `root`; for a corrupted dataset, the number of corruptions."""
    if name in datasets.NOISES:
        return "generated on load"
    source = datasets.sources()[name]
    if split not in source.splits:
        return "not published"
    if not source.variants:
        return "yes" if datasets.present(name, split, root) else "no"
    present = [datasets.present(f"{name}/{each}", split, root) for each in source.variants]
    return f"{sum(present)} of {len(present)} corruptions"
