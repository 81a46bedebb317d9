"""`daedl data`: which data sets are there, and the corrupted ones made where they are missing."""

from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from daedl.cli.common import report_errors, report_warnings
from daedl.data import ImageSet
from daedl.names import look_up
from daedl.storage import write_atomically
from daedl_bench import datasets
from daedl_bench.corruptions import FAMILIES, contact_sheet, generate
from daedl_bench.datasets.load import NOISES
from daedl_bench.datasets.sources import sources

app = typer.Typer(no_args_is_help=True, help="Data sets: which are there, and corrupted ones made.")

SHOWN = 4  # images on a contact sheet, chosen
DOTS_PER_INCH = 84  # two by two dots for each pixel of an image

DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder with the data; by default DAEDL_DATA, or the cache folder."
    ),
]
FamilyName = Annotated[str, typer.Argument(metavar="FAMILY", help="mnist-c or cifar10-c.")]
Download = Annotated[
    bool, typer.Option("--download", help="Download the clean test set if it isn't there.")
]


@app.command("list")
def list_sets(data: DataRoot = None) -> None:
    """Say which data sets there are, and whether their files are under the data root."""
    table = Table("data set", "shape", "train", "test")
    with report_errors(OSError, ValueError):
        root = datasets.data_root(data)
        for name in dict.fromkeys(each.partition("/")[0] for each in datasets.available()):
            table.add_row(name, _shape(name), *(_there(name, s, root) for s in ("train", "test")))
    typer.echo(f"data root: {root}")
    Console().print(table)


@app.command()
def corrupt(
    family: FamilyName,
    data: DataRoot = None,
    names: Annotated[
        str | None, typer.Option(help="Some corruptions, as in fog,frost; by default all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides every draw.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write below; by default the data root.")
    ] = None,
    download: Download = False,
) -> None:
    """Make MNIST-C or CIFAR-10-C from the clean test set, laid out as published; files there are kept."""
    with report_errors(OSError, ValueError), report_warnings():
        clean = _clean(family, data, download)
        chosen = [name.strip() for name in names.split(",")] if names else None
        folder = out or datasets.data_root(data)
        home = generate(clean.images, clean.labels, folder, family, chosen, seed)
    typer.echo(f"{FAMILIES[family].title} is in {home}; files that were there before are kept")


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
    typer.echo(f"the contact sheet is in {out}")


def _clean(family: str, data: Path | None, download: bool) -> ImageSet:
    """The test set that `family` is made from."""
    look_up(FAMILIES, family, "family of corruptions")
    return datasets.load(family.removesuffix("-c"), "test", data, download)


def _shape(name: str) -> str:
    return ", ".join(map(str, NOISES.get(name) or sources()[name].shape))


def _there(name: str, split: str, root: Path) -> str:
    """Whether a split of a data set is under `root`; of a corrupted set, how many corruptions are."""
    if name in NOISES:
        return "made at need"
    source = sources()[name]
    if split not in source.splits:
        return "never published"
    if not source.variants:
        return "yes" if datasets.present(name, split, root) else "no"
    there = [datasets.present(f"{name}/{each}", split, root) for each in source.variants]
    return f"{sum(there)} of {len(there)} corruptions"
