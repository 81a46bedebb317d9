"""Times of alternatives on this machine, measured in alternation, and limits."""

import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.optim import Optimizer

import daedl
from daedl.data import Batch, ImageSet
from daedl.networks import Network
from daedl_bench.results import commit

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Limited:
    """One measured figure; `value` must be at most `limit`, or at least it if `at_least`."""

    benchmark: str
    case: str
    unit: str
    value: float
    limit: float | None = None
    at_least: bool = False
    ours_seconds: float | None = None
    reference_seconds: float | None = None
    seconds: float | None = None
    clients: int | None = None
    threads: int = field(default_factory=torch.get_num_threads)
    torch: str = torch.__version__
    daedl: str = daedl.__version__
    commit: str = field(default_factory=commit)

    @property
    def met(self) -> bool:
        """Whether the value is within the limit."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def best_times(
    work: Mapping[Name, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, float]:
    """The shortest time of each, measured in alternation; the first round is a warm-up.

    Work that returns a float has measured its own seconds, which count instead.
    """
    times: dict[Name, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, run in work.items():
            started = clock()
            taken = run()
            if number:
                elapsed = clock() - started
                times[name].append(taken if isinstance(taken, float) else elapsed)
    return {name: min(each) for name, each in times.items()}


def compared(
    benchmark: str,
    case: str,
    ours: float,
    reference: float,
    limit: float | None = None,
    *,
    faster: bool = False,
    unit: str = "times",
) -> Limited:
    """The ratio of our seconds to the reference; inverted with `faster`, so that larger is better."""
    value = reference / ours if faster else ours / reference
    return Limited(benchmark, case, unit, value, limit, faster, ours, reference)


def cross_entropy(network: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """The loss of the references."""
    return F.cross_entropy(network(images).logits, targets)


def epoch(classifier: daedl.Classifier, images: ImageSet, **options: Any) -> Callable[[], float]:
    """An epoch of `fit` with these options and `batch_size`; it returns the seconds of training."""
    options |= {"max_epochs": 1, "accelerator": "cpu", "progress": False}
    size, augment = options.pop("batch_size"), options.pop("augment", None)

    def run() -> float:
        batches = images.batches(size, shuffle=True, augment=augment)
        history = daedl.fit(classifier, batches, **options)
        return history.epochs[0].seconds

    return run


def plain_epoch(
    network: Network, optimizer: Optimizer, batches: Sequence[Batch], *, bfloat16: bool = False
) -> Callable[[], None]:
    """An epoch of a plain loop with cross-entropy on prepared batches."""

    def run() -> None:
        for images, targets in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = cross_entropy(network, images, targets)
            torch.autograd.backward(loss)
            optimizer.step()

    return run


def record(title: str, rows: Sequence[Limited], path: Path) -> bool:
    """Show the rows, append them to the file `path`, and return whether no limit is exceeded."""
    table = Table("figure", "case", "measured", "limit", title=title)
    for each in rows:
        limit = "" if each.limit is None else f"{'≥' if each.at_least else '≤'} {each.limit:.3g}"
        color = "green" if each.met else "red"
        measured = f"[{color}]{each.value:.4g}[/{color}] {each.unit}"
        table.add_row(each.benchmark, each.case, measured, limit)
    Console().print(table)
    with path.open("a", encoding="utf-8") as file:
        for each in rows:
            present = {key: value for key, value in asdict(each).items() if value is not None}
            file.write(json.dumps(present) + "\n")
    return all(each.met for each in rows)


def conclude(title: str, rows: Sequence[Limited], path: Path) -> None:
    """Show the rows and append them to the file `path`; exit with status 1 if a limit is exceeded."""
    met = record(title, rows, path)
    typer.echo(f"rows appended to {path}")
    raise typer.Exit(0 if met else 1)
