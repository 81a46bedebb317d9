"""What each method costs beside softmax: a training step, and a prediction.

    python benchmarks/costs.py --data ROOT    rows to results/costs.jsonl

All methods take turns in one process, several times over, and the best time of each counts, so that a noisy
machine disturbs them alike. Nothing is taken from a cache: the steps that are timed are also all the training
that the networks get. Then what a method fits is fitted to the real training images, as the time of a
prediction depends on how many there are and on how well conditioned their features are, not on accuracy.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from daedl import data
from daedl.classifier import Classifier
from daedl.data import ImageSet
from daedl.methods import Method
from daedl.networks import lay_out
from daedl.outputs import Outputs
from daedl_bench import rows
from daedl_bench.rows import Measured
from daedl_bench.spec import Protocol, catalogue, cell_key

PATH = Path(__file__).parent / "results" / "costs.jsonl"
REFERENCE = "softmax"
# Held-out images that a method is fitted to: their number changes no prediction's time (chosen).
HELD_OUT = 1000


def untrained(protocol: Protocol, method: Method) -> Classifier:
    """A classifier with the protocol's network, the same weights for all."""
    torch.manual_seed(0)
    classifier = Classifier(protocol.build(), method)
    lay_out(classifier.network)
    return classifier


def step(classifier: Classifier, images: ImageSet, size: int) -> Callable[[], None]:
    """A training step, on the next `size` images each time."""
    network, method = classifier.network.train(), classifier.method
    optimizer = torch.optim.Adam(network.parameters())
    batches = chain.from_iterable(repeat(images.batches(size)))

    def run() -> None:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        torch.autograd.backward(method.training_loss(network, inputs, targets, 5))
        optimizer.step()

    return run


def predictors(
    methods: Mapping[str, Method],
    trained: Mapping[Method, Classifier],
    train: ImageSet,
    held_out: ImageSet,
) -> dict[str, Classifier]:
    """Every method on the network of its training, fitted; outputs are collected once a network."""
    fit_split = {"training": train, "validation": held_out}
    collected: dict[tuple[Method, str], tuple[Outputs, torch.Tensor]] = {}
    found = {}
    for label, method in methods.items():
        training = method.training_method()
        classifier = found[label] = Classifier(trained[training].network, method).eval()
        if method.needs_fit:
            key = (training, method.fit_split)
            if key not in collected:
                collected[key] = classifier.collect(fit_split[method.fit_split].batches(256))
            classifier.fit_outputs(*collected[key])
    return found


def best_of(work: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The shortest time of each, all taking turns; the first turn warms up."""
    best = [float("inf")] * len(work)
    for number in range(rounds + 1):
        for place, run in enumerate(work):
            started = time.perf_counter()
            run()
            if number:
                best[place] = min(best[place], time.perf_counter() - started)
    return best


def main() -> int:
    """Measure, show, and write the rows anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    specs = catalogue()
    experiment = specs.experiment("mnist-ood")
    protocol = experiment.protocol("brief")
    methods = {label: specs.method(label, protocol) for label in experiment.methods}
    held_out, train = data.load("mnist", "train", root=options.data).parted(protocol.split[1], 0)
    held_out = held_out.subset(range(HELD_OUT))
    images, _ = next(iter(data.load("mnist", "test", root=options.data).batches(512)))

    trainings = dict.fromkeys(method.training_method() for method in methods.values())
    trained = {training: untrained(protocol, training) for training in trainings}
    size = protocol.training["batch_size"]
    steps = best_of([step(each, train, size) for each in trained.values()], options.steps)
    step_of = dict(zip(trained, steps, strict=True))
    ready = predictors(methods, trained, train, held_out)
    predictions = best_of(
        [partial(each.predict, images) for each in ready.values()], options.rounds
    )
    found = {
        "step": {label: step_of[method.training_method()] for label, method in methods.items()},
        "prediction": dict(zip(ready, predictions, strict=True)),
    }
    table = Table("method", "training step", "prediction", title="beside softmax")
    measured = []
    for label, method in methods.items():
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
                spec=cell_key(protocol, method, 0),
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
