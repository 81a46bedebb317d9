"""Speed of the protocols of CIFAR-10.

`cpu`: training against a plain loop with cross-entropy on the same network, laid out alike, and prediction
against the bare forward pass. `paper`: some hundred training steps of VGG-16, whose loss must fall, and the
time that all epochs would take on this machine. The exit status is 1 if a figure exceeds its limit.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Annotated

import torch
import typer

import daedl
from daedl.data import ImageSet, augmentation
from daedl.data.batches import Batch, Batches
from daedl.networks import lay_out
from daedl_bench.datasets import load
from daedl_bench.options import RESULTS, DataRoot
from daedl_bench.spec import Protocol, catalogue
from daedl_bench.studies._machine import (
    Limited,
    best_times,
    compared,
    conclude,
    epoch,
    plain_epoch,
)
from daedl_bench.studies.speed import prediction

METHOD = "daedl"
app = typer.Typer()


class Windows:
    """Passes over `batches` in windows of `steps`, each window an epoch of `fit`."""

    def __init__(self, batches: Batches, steps: int) -> None:
        self.steps = steps
        self.stream = chain.from_iterable(repeat(batches))

    def __iter__(self) -> Iterator[Batch]:
        return islice(self.stream, self.steps)


def throughput(protocol: Protocol, images: ImageSet, rounds: int) -> Limited:
    """Images a second of `fit`, with augmentation, against a plain loop on prepared batches."""
    method = catalogue().method(METHOD, protocol).training_method()
    classifier, bare = protocol.classifier(method), protocol.classifier(method)
    options = protocol.fit_options(method)
    size = options["batch_size"]
    ready = [(bare.prepare(pixels), targets) for pixels, targets in images.batches(size)]
    lay_out(bare.network.train())
    optimizer = options["optimizer"](bare.network.parameters())
    augment = augmentation(protocol.augment)
    sides = {
        "ours": epoch(classifier, images, augment=augment, **options),
        "theirs": plain_epoch(bare.network, optimizer, ready, bfloat16=True),
    }
    times = best_times(sides, rounds)
    rate = len(images) / times["ours"]
    case = f"{type(bare.network).__name__}, batch {size}, {rate:.0f} images a second"
    name = "images a second: fit / plain loop, same layout and precision"
    return compared(name, case, times["ours"], times["theirs"], 0.9, faster=True)


def first_steps(protocol: Protocol, images: ImageSet, steps: int, windows: int) -> list[Limited]:
    """Mean loss in each window of `steps` training steps, and hours that all epochs would take."""
    torch.manual_seed(0)
    method = catalogue().method(METHOD, protocol).training_method()
    classifier = protocol.classifier(method)
    options = {**protocol.fit_options(method), "max_epochs": windows, "lr_decay": 1.0}
    size = options.pop("batch_size")
    augment = augmentation(protocol.augment)
    data = Windows(images.batches(size, shuffle=True, augment=augment, drop_last=True), steps)
    history = daedl.fit(classifier, data, accelerator="cpu", progress=True, **options)
    name, network = "mean training loss", type(classifier.network).__name__
    losses = [epoch.train_loss for epoch in history.epochs]
    rows = [
        Limited(name, f"{network}, steps {steps * n + 1} to {steps * (n + 1)}", "", loss)
        for n, loss in enumerate(losses)
    ]
    fall = f"{network}, last {steps} steps / first {steps}"
    rows.append(Limited(name, fall, "times", losses[-1] / losses[0], 1.0))
    epochs: int = protocol.training["max_epochs"]
    seconds = min(epoch.seconds for epoch in history.epochs) / steps * protocol.split[0] / size
    case = f"{network}, {epochs} epochs, projected from {steps * windows} steps"
    rows.append(Limited("training time", case, "hours", epochs * seconds / 3600))
    return rows


@app.command(help=__doc__)
def main(
    data: DataRoot = None,
    only: Annotated[str, typer.Option(help="Parts whose name contains this: cpu, paper.")] = "",
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Training steps per window.")] = 50,
    windows: Annotated[int, typer.Option(min=2, help="Windows of training steps.")] = 6,
    images: Annotated[int, typer.Option(min=1, help="Images per timed epoch.")] = 5120,
    rounds: Annotated[int, typer.Option(min=1, help="Timed epochs of each side.")] = 3,
    rows: Annotated[Path, typer.Option(help="File to append to.")] = RESULTS
    / "cifar10_speed.jsonl",
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    protocols = catalogue().experiment("cifar10-ood").protocols
    known = load("cifar10", "train", data, download=False)

    def cpu() -> list[Limited]:
        network = protocols["cpu"].classifier(daedl.methods.DAEDL()).network
        part = known.subset(range(images))
        return [throughput(protocols["cpu"], part, rounds), *prediction(network, limit=1.10)]

    parts: dict[str, Callable[[], list[Limited]]] = {
        "cpu": cpu,
        "paper": partial(first_steps, protocols["paper"], known, steps, windows),
    }
    measured = [row for name, part in parts.items() if only in name for row in part()]
    conclude("Speed on CIFAR-10", measured, rows)
