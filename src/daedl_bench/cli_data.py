"""`python -m daedl_bench data`: list datasets, and generate corrupted ones."""

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
from daedl_bench.options import DataRoot
from daedl_bench.options import names as split_names

app = typer.Typer(no_args_is_help=True, help="List datasets, and generate corrupted ones.")

SHOWN = 4  # images on a contact sheet, chosen
DOTS_PER_INCH = 84  # 2 x 2 dots per pixel of an image

FamilyName = Annotated[str, typer.Argument(metavar="FAMILY", help="mnist-c or cifar10-c.")]
Download = Annotated[
    bool, typer.Option("--download", help="Download the clean test set if it is missing.")
]


@app.command("list")
def list_sets(data: DataRoot = None) -> None:
    """List the datasets, and whether their files are under the data root."""
    table = Table("dataset", "shape", "train", "test")
    with report_errors(OSError, ValueError):
        root = datasets.data_root(data)
        for name in dict.fromkeys(each.partition("/")[0] for each in datasets.available()):
            table.add_row(
                name, _shape(name), *(_presence(name, s, root) for s in ("train", "test"))
            )
    typer.echo(f"data root: {root}")
    Console().print(table)


@app.command()
def corrupt(
    family: FamilyName,
    data: DataRoot = None,
    names: Annotated[
        str, typer.Option(help="Some corruptions, as in fog,frost; by default all.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Parent folder; by default the data root.")
    ] = None,
    download: Download = False,
) -> None:
    """Generate MNIST-C or CIFAR-10-C from the clean test set, in the published layout.

    Existing files are kept.
    """
    with report_errors(OSError, ValueError), report_warnings():
        clean = _clean(family, data, download)
        folder = out or datasets.data_root(data)
        chosen = split_names(names) or None
        home = generate(clean.images, clean.labels, folder, family, chosen, seed)
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
    typer.echo(f"the contact sheet is in {out}")


def _clean(family: str, data: Path | None, download: bool) -> ImageSet:
    """The test set that `family` is generated from."""
    look_up(FAMILIES, family, "family of corruptions")
    return datasets.load(family.removesuffix("-c"), "test", data, download)


def _shape(name: str) -> str:
    return ", ".join(map(str, NOISES.get(name) or sources()[name].shape))


def _presence(name: str, split: str, root: Path) -> str:
    """Whether a split is under `root`; of a corrupted dataset, how many corruptions are."""
    if name in NOISES:
        return "generated"
    source = sources()[name]
    if split not in source.splits:
        return "not published"
    if not source.variants:
        return "yes" if datasets.present(name, split, root) else "no"
    present = [datasets.present(f"{name}/{each}", split, root) for each in source.variants]
    return f"{sum(present)} of {len(present)} corruptions"
