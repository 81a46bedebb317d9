"""The cost of each method relative to softmax: of a training step, and of a prediction.

Methods alternate in one process, and the best time of each counts, so that other load on the machine affects
them equally. Nothing comes from the cache: the timed steps are all the training that the networks get.
Then methods are fitted to the real training images, as the time of a prediction depends on their number and
on how well conditioned their features are.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain, product, repeat
from typing import Annotated

import torch
import typer
from torch import Tensor

from daedl.classifier import Classifier
from daedl.data import ImageSet
from daedl.evaluate import Measured
from daedl.methods import Method
from daedl.networks import lay_out
from daedl.outputs import Outputs
from daedl_bench import datasets, options, results
from daedl_bench.runner import trial_rows
from daedl_bench.spec import Protocol, catalogue
from daedl_bench.studies._machine import best_times

REFERENCE = "softmax"
HELD_OUT = 1000  # images for methods fitted to validation data; they don't change times (chosen)
app = typer.Typer()


def untrained(protocol: Protocol, method: Method) -> Classifier:
    """A classifier with the same weights for every method."""
    torch.manual_seed(0)
    classifier = protocol.classifier(method)
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
        inputs = classifier.prepare(inputs)
        torch.autograd.backward(method.training_loss(network, inputs, targets, 5))
        optimizer.step()

    return run


def fitted(
    methods: dict[str, Method], trained: dict[Method, Classifier], data: dict[str, ImageSet]
) -> dict[str, Classifier]:
    """Every method on the network that it is trained with; outputs are collected once per network."""
    collected: dict[tuple[Method, str], tuple[Outputs, Tensor]] = {}
    classifiers = {}
    for label, method in methods.items():
        training = method.training_method()
        classifier = classifiers[label] = Classifier(trained[training].network, method).eval()
        if method.needs_fit:
            key = (training, method.fit_split)
            if key not in collected:
                collected[key] = classifier.collect(data[method.fit_split])
            classifier.fit_outputs(*collected[key])
    return classifiers


@app.command(help=__doc__)
def main(
    data: options.DataRoot = None,
    folder: options.ResultsFolder = options.RESULTS,
    steps: Annotated[int, typer.Option(help="Timed training steps.")] = 100,
    rounds: Annotated[int, typer.Option(help="Timed predictions.")] = 7,
    threads: int = 1,
) -> None:
    torch.set_num_threads(threads)
    specs = catalogue()
    experiment, protocol = specs.experiment("mnist-ood"), specs.protocols["mnist-brief"]
    methods = {label: specs.method(label, protocol) for label in experiment.methods}
    held_out, train = datasets.load("mnist", "train", data).random_split(protocol.split[1], 0)
    splits = {"training": train, "validation": held_out.subset(range(HELD_OUT))}
    images, _ = next(iter(datasets.load("mnist", "test", data).batches(512)))

    trainings = dict.fromkeys(method.training_method() for method in methods.values())
    trained = {training: untrained(protocol, training) for training in trainings}
    size = protocol.training["batch_size"]
    of_training = best_times({t: step(each, train, size) for t, each in trained.items()}, steps)
    ready = fitted(methods, trained, splits)
    seconds = {
        "step": {label: of_training[each.training_method()] for label, each in methods.items()},
        "prediction": best_times(
            {label: partial(each.predict, images) for label, each in ready.items()}, rounds
        ),
    }
    rows = []
    for label, (score, times) in product(methods, seconds.items()):
        relative = [Measured("cost", score, "relative", times[label] / times[REFERENCE])]
        trial, fields = specs.trial(label, protocol, 0), {"experiment": experiment.name}
        rows += trial_rows(relative, trial, label, "cost", times[label], **fields)
    results.save(folder / "costs.jsonl", rows)
    table = results.frame(rows).pivot(index="method", columns="score", values="value")
    typer.echo(table.round(2).to_string())
