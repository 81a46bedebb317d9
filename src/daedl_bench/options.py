"""Options that the commands share."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from daedl.demo.training import SILENT, Progress
from daedl.storage import expand_user
from daedl_bench import datasets
from daedl_bench.cache import Cache
from daedl_bench.workspace import Workspace

RESULTS = Path("benchmarks/results")  # from the root of the repository

DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder with the datasets; by default DAEDL_DATA, or the cache folder."
    ),
]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache", help="Folder for trained networks and outputs; by default in the data folder."
    ),
]
ResultsFolder = Annotated[Path, typer.Option("--results", help="Folder with the files of rows.")]
Seeds = Annotated[str, typer.Option(help="As in 0, 0-4 or 0,2,5.")]
Methods = Annotated[str, typer.Option(help="Labels of methods, separated by commas.")]


def cache_folder(data: Path | None, cache: Path | None) -> Path:
    """The folder that the options name."""
    return expand_user(cache or datasets.data_root(data) / "runs").absolute()


def workspace(data: Path | None, cache: Path | None, progress: Progress = SILENT) -> Workspace:
    """The workspace that the options name."""
    root = datasets.data_root(data).absolute()  # engines have other current folders
    return Workspace(partial(datasets.load, root=root), Cache(cache_folder(data, cache)), progress)


def names(text: str) -> list[str]:
    """The names in "daedl, edl"; none in ""."""
    return [each.strip() for each in text.split(",")] if text else []


def seed_list(text: str) -> list[int]:
    """The seeds in "0-4" or "0,2,5"."""
    try:
        spans = [part.partition("-") for part in text.split(",")]
        ranges = [range(int(first), int(last or first) + 1) for first, _, last in spans]
        if not all(ranges):
            raise ValueError("a span is empty")
        return [seed for span in ranges for seed in span]
    except ValueError as error:
        raise ValueError(f"seeds are {text!r}; expected numbers as in 0, 0-4 or 0,2,5") from error
