"""Learning rates under `mnist-brief`, by figures of validation images.

A method whose validation accuracy stays below 99% is trained again at a quarter of the learning rate, and the
rate with the lower validation loss is added to `rates` of the protocol.
"""

from collections.abc import Iterator, Sequence

import msgspec
import torch
import typer

from daedl import evaluate
from daedl.cli.memory import keep_freed_memory
from daedl.demo.training import Progress
from daedl.evaluate import Measured
from daedl.training import Epoch
from daedl_bench import options
from daedl_bench.runner import measure_once
from daedl_bench.spec import Protocol, catalogue
from daedl_bench.workspace import VALIDATION, Predictor

FILE, EXPERIMENT = "mnist_rates.jsonl", "mnist-quick-choice"
RATES = (4e-3, 1e-3)
ENOUGH = 0.99  # validation accuracy at which no other rate is tried (chosen)
app = typer.Typer()


def rate_protocol(rate: float) -> Protocol:
    """`mnist-brief` with one learning rate for all methods."""
    brief = catalogue().protocols["mnist-brief"]
    training = {**brief.training, "learning_rate": rate}
    return msgspec.structs.replace(brief, name=f"brief, rate {rate:g}", training=training, rates={})


def selected(epochs: Sequence[Epoch]) -> Epoch:
    """The best epoch of the training phase; losses of other phases can't be compared with it."""
    training = [each for each in epochs if each.phase == "training"]
    return min(training, key=lambda each: each.val_loss or 0.0)


def validation(predictor: Predictor) -> Iterator[tuple[str, list[Measured]]]:
    """Figures of the selected epoch, of the method's predictions, and the cost of training."""
    best, (seconds, *_) = selected(predictor.epochs), predictor.costs()
    predicted = evaluate.classification(*predictor.predict(VALIDATION))
    yield (
        "validation",
        [
            Measured("training", "loss", "validation", best.val_loss or 0.0),
            Measured("training", "labels", "accuracy", best.val_accuracy or 0.0),
            seconds,
            *(each for each in predicted if each.metric in ("brier", "nll")),
        ],
    )


@app.command(help=__doc__)
def main(
    methods: options.Methods,
    data: options.DataRoot = None,
    cache: options.CacheFolder = None,
    folder: options.ResultsFolder = options.RESULTS,
    seeds: options.Seeds = "0",
    threads: int = 1,
) -> None:
    keep_freed_memory()
    torch.set_num_threads(threads)
    space, specs = options.workspace(data, cache, Progress()), catalogue()
    for seed in options.seed_list(seeds):
        for label in options.names(methods):
            for rate in RATES:
                trial = specs.trial(label, rate_protocol(rate), seed)
                rows = measure_once(folder / FILE, space, trial, label, validation, EXPERIMENT)
                if max(row.value or 0.0 for row in rows if row.metric == "accuracy") >= ENOUGH:
                    break
