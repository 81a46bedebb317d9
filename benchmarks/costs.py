"""What each method costs beside softmax: a training step, and a prediction.

    python benchmarks/costs.py --cache FOLDER --data ROOT    rows to results/costs.jsonl

All methods take turns in one process, several times over, and the best time of each counts, so that a noisy
machine disturbs them alike. Predictions are made by the trained networks of seed 0 in the cache, with what
their methods fitted; it trains nothing: `daedl bench run mnist-ood` comes first. Methods whose network isn't
there are left out.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from daedl.bench import data, rows
from daedl.bench.rows import Measured
from daedl.bench.runner import Cell
from daedl.bench.spec import catalogue
from daedl.bench.store import Store
from daedl.classifier import Classifier

PATH = Path(__file__).parent / "results" / "costs.jsonl"
REFERENCE = "softmax"


def step(cell: Cell, images: Tensor, targets: Tensor) -> Callable[[], object]:
    """A training step of a new network on a batch."""
    method = cell.method.trained_as()
    network = Classifier(cell.protocol.build(), method).network.train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters())

    def run() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(method.training_loss(network, images, targets, 5))
        optimizer.step()

    return run


def prediction(cell: Cell, images: Tensor) -> Callable[[], object]:
    """A prediction by the trained network."""
    classifier = Classifier(cell.classifier.network, cell.method)
    classifier.fitted = cell.fitted
    return partial(classifier.eval().predict, images)


def best_of(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The shortest time of each, all taking turns; the first turn warms up."""
    best = dict.fromkeys(work, float("inf"))
    for number in range(rounds + 1):
        for label, run in work.items():
            started = time.perf_counter()
            run()
            if number:
                best[label] = min(best[label], time.perf_counter() - started)
    return best


def main() -> int:
    """Measure, show, and write the rows anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    specs = catalogue()
    experiment = specs.experiment("mnist-ood")
    protocol = experiment.protocol("quick")
    load, store = partial(data.load, root=options.data), Store(options.cache)
    cells = {
        label: Cell(protocol, specs.method(label, protocol), 0, load, store)
        for label in experiment.methods
    }
    cells = {label: cell for label, cell in cells.items() if cell.trained}
    images, targets = next(iter(load("mnist", "test").batches(512)))
    size = protocol.training["batch_size"]
    found = {
        "step": best_of(
            {label: step(cell, images[:size], targets[:size]) for label, cell in cells.items()},
            5 * options.rounds,
        ),
        "prediction": best_of(
            {label: prediction(cell, images) for label, cell in cells.items()}, options.rounds
        ),
    }
    table = Table("method", "training step", "prediction", title="beside softmax")
    measured = []
    for label, cell in cells.items():
        relative = {score: times[label] / times[REFERENCE] for score, times in found.items()}
        table.add_row(label, *(f"{value:.2f}" for value in relative.values()))
        measured += [
            rows.row(
                Measured("cost", score, "relative", value),
                experiment=experiment.name,
                method=label,
                data="cost",
                seed=0,
                seconds=found[score][label],
                spec=cell.key,
                protocol=protocol.name,
            )
            for score, value in relative.items()
        ]
    PATH.unlink(missing_ok=True)
    rows.append(PATH, measured)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
