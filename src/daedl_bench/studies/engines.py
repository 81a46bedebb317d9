"""Engines: 100,000 images of MNIST in a Parquet file, predicted by one process and by Ray on this machine.

Every process has one thread. Times are the best of several, measured in alternation; results must be equal.
The processor time of all processes is also shown, because other load on the machine affects it less than
the elapsed time.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

import daedl
from daedl.bulk import predict_files
from daedl.checks import import_optional
from daedl.engines import RAY, Engine, connect
from daedl.networks import ConvNet
from daedl_bench.datasets import load
from daedl_bench.options import RESULTS, DataRoot
from daedl_bench.studies._machine import Limited, compared, conclude

ROW_GROUP = 4096
CHANNELS = 16  # a quarter of the paper's (chosen): the faster the network, the more of the time is overhead
app = typer.Typer()


def images_of(data: Path | None, number: int) -> Tensor:
    """Training and test images of MNIST, repeated to `number`, (N, 1, 28, 28), uint8."""
    both = torch.cat(
        [load("mnist", split, data, download=False).images for split in ("train", "test")]
    )
    return both[torch.arange(number) % len(both)]


def write_pixels(images: Tensor, path: Path) -> None:
    """A Parquet file with a list of pixels per image."""
    arrow = import_optional("pyarrow", "Parquet files", "'daedl[ray]'")
    parquet = import_optional("pyarrow.parquet", "Parquet files", "'daedl[ray]'")
    flat = images.flatten(1)
    pixels = arrow.FixedSizeListArray.from_arrays(flat.flatten().numpy(), flat.shape[1])
    parquet.write_table(arrow.table({"pixels": pixels}), path, row_group_size=ROW_GROUP)


def save_model(data: Path | None, path: Path) -> None:
    """One epoch on a part of the images: speed doesn't depend on accuracy."""
    some = load("mnist", "train", data, download=False).subset(range(12_000))
    model = daedl.Classifier(ConvNet(1, 10, channels=CHANNELS))
    daedl.fit(model, some, max_epochs=1, progress=False)
    model.calibrate(load("mnist", "test", data, download=False).subset(range(2000)))
    model.save(path)


def predict(
    folder: Path, name: str, engine: Engine | None = None, source: str = "mnist.parquet"
) -> None:
    """Predicts `source` into the folder `name`, again from the first part."""
    out = folder / f"{name}.parquet"
    shutil.rmtree(out, ignore_errors=True)
    predict_files(folder / "model.daedl", [folder / source], out, engine=engine)


def cpu_seconds() -> float:
    """Processor time of this process and all its descendants, as Linux counts it."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            values = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(values[1])
            times[int(path.parent.name)] = sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(times.get(pid, 0.0) for pid in family)


def best(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """The shortest elapsed time and the least processor time of each, measured in alternation."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            started, before = time.perf_counter(), cpu_seconds()
            run()
            measured[name].append((time.perf_counter() - started, cpu_seconds() - before))
    return {
        name: (min(each[0] for each in times), min(each[1] for each in times))
        for name, times in measured.items()
    }


def engine_rows(folder: Path, workers: int, rounds: int, size: str) -> list[Limited]:
    """Ray with `workers` processes compared with this process."""
    name = f"ray, {workers} worker{'s' * (workers > 1)}"
    started = time.perf_counter()
    with connect(RAY, workers) as engine:
        ready = time.perf_counter()
        predict(folder, "ray", engine, "one.parquet")
        first = time.perf_counter() - ready
        work: dict[str, Callable[[], object]] = {
            "local": partial(predict, folder, "local"),
            "ray": partial(predict, folder, "ray", engine),
        }
        (one, one_cpu), (ours, cpu) = best(work, rounds).values()
    _require_equal(folder)
    return [
        Limited("start of the cluster", name, "s", ready - started),
        Limited("first image, with the start of a worker", name, "s", first),
        Limited(f"{size} images", "one process", "s", one),
        Limited(f"{size} images", name, "s", ours),
        compared(f"{size} images, time by one process", name, ours, one),
        compared(f"{size} images, processor time by one process", name, cpu, one_cpu),
    ]


def _require_equal(folder: Path) -> None:
    dataset = import_optional("pyarrow.dataset", "Parquet files", "'daedl[ray]'")
    one, other = (
        dataset.dataset(folder / f"{each}.parquet").to_table() for each in ("local", "ray")
    )
    if not one.equals(other):
        raise ValueError("the engines' predictions differ; expected equal ones")


@app.command(help=__doc__)
def main(
    data: DataRoot = None,
    images: Annotated[int, typer.Option(help="Number of images.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="Repetitions of each time.")] = 2,
    rows: Annotated[Path, typer.Option(help="File to append to.")] = RESULTS / "engines.jsonl",
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = f"{images:,}"
    with tempfile.TemporaryDirectory() as name:
        folder, pixels = Path(name), images_of(data, images)
        save_model(data, folder / "model.daedl")
        write_pixels(pixels, folder / "mnist.parquet")
        write_pixels(pixels[:1], folder / "one.parquet")
        measured = [row for workers in (1, 2) for row in engine_rows(folder, workers, rounds, size)]
    conclude("Engines", measured, rows)
