"""How the `mnist-quick` protocol was selected, by figures of validation images.

`choose` trains DAEDL under every candidate, with seeds 100 and 101 that no experiment uses, and keeps loss
and accuracy of the selected epoch, Brier score and NLL of the whole method, and the seconds. Of the
candidates within a fifth of the time of `mnist-paper`, the lowest mean loss is selected.

`unknown` leaves three digits out of training and measures how well they are detected: the loss doesn't
depend on the total concentration, by which OOD images are detected. The rule, fixed before any training:
the highest mean AUROC over three triples of digits, one seed per triple, and over both scores.

`rates` trains methods under `mnist-brief`. One whose validation accuracy stays below 99% is trained again at
a quarter of the learning rate, and the rate with the lower validation loss goes into `rates` of the protocol.

`check` measures candidates on test and OOD images. These figures select nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
import typer

from daedl import evaluate
from daedl.cli.memory import keep_freed_memory
from daedl.data import ImageSet
from daedl.demo.training import Progress
from daedl.evaluate import Measured
from daedl.training import Epoch
from daedl_bench import options
from daedl_bench.runner import append_missing, measure_once
from daedl_bench.spec import Protocol, Trial, catalogue
from daedl_bench.workspace import VALIDATION, Predictor, Workspace

EXPERIMENT = "mnist-quick-choice"  # of the rows, which no report shows
ONE_CYCLE = "one cycle"  # first words of a candidate's name
LEFT_OUT = {102: (0, 1, 2), 103: (3, 4, 5), 104: (6, 7, 8)}  # digits, by seed
RATES = (4e-3, 1e-3)
ENOUGH = 0.99  # validation accuracy at which no other rate is tried (chosen)
# Epochs, batch size and rate. Rates first, then one epoch more at the best of them, then half the batch,
# then as many epochs as a fifth of the paper's time allows at three rates, then half the batch again.
RECIPES = (
    *((4, 64, 3e-3), (4, 64, 6e-3), (4, 64, 1.2e-2), (5, 64, 6e-3), (5, 32, 4e-3)),
    *((8, 32, 4e-3), (8, 32, 2e-3), (8, 32, 1e-3), (7, 16, 2e-3), (7, 16, 1e-3)),
)
# Candidates whose losses differ by less than seeds do: `unknown` compares these.
TIED = ((8, 32, 4e-3), (8, 32, 2e-3), (7, 16, 2e-3), (7, 16, 1e-3))
# Files of rows, and the default seeds.
STEPS = {
    "choose": ("mnist_quick_choice.jsonl", "100,101"),
    "unknown": ("mnist_quick_unknown.jsonl", "102-104"),
    "rates": ("mnist_rates.jsonl", "0"),
    "check": ("mnist_quick_checks.jsonl", "100"),
}
Figures = Iterator[tuple[str, list[Measured]]]  # by dataset
app = typer.Typer()


def name(training: Mapping[str, Any]) -> str:
    """The name of a candidate, which states its settings."""
    text = ONE_CYCLE + ", {max_epochs} epochs, batch {batch_size}, rate {learning_rate:g}"
    return text.format_map(training)


def candidates(
    recipes: Sequence[tuple[int, int, float]] = RECIPES, only: str = ""
) -> Iterator[Protocol]:
    """The protocols that are compared, whose name contains `only`."""
    paper, fields = (
        catalogue().protocols["mnist-paper"],
        ("max_epochs", "batch_size", "learning_rate"),
    )
    for recipe in recipes:
        training = {**dict(zip(fields, recipe, strict=True)), "schedule": "one-cycle"}
        if only in name(training):
            yield msgspec.structs.replace(paper, name=name(training), training=training)


def rate_protocol(rate: float) -> Protocol:
    """`mnist-brief` with one learning rate for all methods."""
    brief = catalogue().protocols["mnist-brief"]
    training = {**brief.training, "learning_rate": rate}
    return msgspec.structs.replace(brief, name=f"brief, rate {rate:g}", training=training, rates={})


def without_digits(candidate: Protocol, known: ImageSet) -> Protocol:
    """`candidate` for the images of the remaining digits."""
    held_out = len(known) // 5  # as 12,000 of 60,000
    return msgspec.structs.replace(
        candidate,
        data=known.name,
        split=(len(known) - held_out, held_out),
        network={**candidate.network, "num_classes": known.num_classes},
    )


def split_digits(images: ImageSet, digits: tuple[int, ...]) -> tuple[ImageSet, ImageSet]:
    """The images of all other digits, with new labels, and the images of `digits`, without labels."""
    known = torch.tensor([digit for digit in range(10) if digit not in digits])
    is_known = torch.isin(images.labels, known)
    inside, outside = (images.subset(each.nonzero().squeeze(1)) for each in (is_known, ~is_known))
    name, labels = f"digits {', '.join(map(str, digits))}", torch.searchsorted(known, inside.labels)
    return (
        replace(inside, labels=labels, name=f"mnist without {name}", class_names=None),
        replace(outside, labels=torch.zeros_like(outside.labels), name=name, class_names=None),
    )


def selected(epochs: Sequence[Epoch]) -> Epoch:
    """The best epoch of the training phase; losses of other phases can't be compared with it."""
    training = [each for each in epochs if each.phase == "training"]
    return min(training, key=lambda each: each.val_loss or 0.0)


def validation(predictor: Predictor) -> Figures:
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


def detection(others: str, predictor: Predictor) -> Figures:
    """Figures of validation images, and of the detection of the dataset `others`."""
    inside, targets = predictor.predict(VALIDATION)
    outside, _ = predictor.predict(others)
    figures = evaluate.classification(inside, targets), evaluate.ood_detection(inside, outside)
    yield others, [each for part in figures for each in part]


def unknown(path: Path, space: Workspace, seed: int, only: str) -> None:
    """Train the tied candidates without the digits of `seed`."""
    images = split_digits(space.load("mnist", "train"), LEFT_OUT[seed])
    sets = {each.name: each for each in images}
    other_space = replace(space, load=lambda name, _: sets[name])
    known, others = images
    for candidate in candidates(TIED, only):
        trial = Trial(without_digits(candidate, known), catalogue().method("daedl"), seed)
        measure_once(path, other_space, trial, "daedl", partial(detection, others.name), EXPERIMENT)


def rates(path: Path, space: Workspace, label: str, seed: int) -> None:
    """Train a method at one rate after the other until its accuracy is `ENOUGH`."""
    for rate in RATES:
        trial = catalogue().trial(label, rate_protocol(rate), seed)
        rows = measure_once(path, space, trial, label, validation, EXPERIMENT)
        if max(row.value or 0.0 for row in rows if row.metric == "accuracy") >= ENOUGH:
            break


@app.command(help=__doc__)
def main(
    step: Literal["choose", "unknown", "rates", "check"],
    data: options.DataRoot = None,
    cache: options.CacheFolder = None,
    folder: options.ResultsFolder = options.RESULTS,
    seeds: Annotated[str, typer.Option(help="By default 100 and 101, or as the step says.")] = "",
    only: Annotated[str, typer.Option(help="Candidates whose name contains this.")] = "",
    methods: options.Methods = "edl",
    threads: int = 1,
) -> None:
    keep_freed_memory()
    torch.set_num_threads(threads)
    file, default = STEPS[step]
    path, space, specs = folder / file, options.workspace(data, cache, Progress()), catalogue()
    experiments = [specs.experiment(each) for each in ("mnist-ood", "mnist-shift")]
    named = {"experiment": EXPERIMENT}
    for seed in options.seed_list(seeds or default):
        if step == "unknown":
            unknown(path, space, seed, only)
        elif step == "rates":
            for label in options.names(methods):
                rates(path, space, label, seed)
        else:
            for protocol in candidates(only=only):
                trial = Trial(protocol, specs.method("daedl"), seed)
                if step == "choose":
                    measure_once(path, space, trial, "daedl", validation, EXPERIMENT)
                else:
                    ready = space.prepare(trial)
                    for experiment in experiments:
                        for unit in experiment.units:
                            append_missing(path, experiment, "daedl", ready, unit, **named)
