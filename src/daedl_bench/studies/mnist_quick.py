"""How the `mnist-quick` protocol was selected, by figures of validation images.

`choose` trains DAEDL under every candidate, with seeds 100 and 101 that no experiment uses, and keeps loss
and accuracy of the selected epoch, Brier score and NLL of the whole method, and the seconds. Of the
candidates within a fifth of the time of `mnist-paper`, the lowest mean loss is selected.

`unknown` leaves three digits out of training and measures how well they are detected: the loss doesn't
depend on the total concentration, by which OOD images are detected. The rule, fixed before any training:
the highest AUROC, as mean over three triples of digits, each with its own seed, and over both scores.

`rates` trains methods under `mnist-brief`. One whose validation accuracy stays below 99% is trained again at
a quarter of the learning rate, and the rate with the lower validation loss goes into `rates` of the protocol.

`check` measures candidates on test and OOD images. These figures select nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
import torch
import typer

from daedl import evaluate
from daedl.cli.common import Threads
from daedl.cli.memory import keep_freed_memory
from daedl.data import ImageSet
from daedl.demo.training import Progress
from daedl.evaluate import Measured
from daedl.training import Epoch
from daedl_bench import results
from daedl_bench.options import (
    RESULTS,
    CacheFolder,
    DataRoot,
    Methods,
    ResultsFolder,
    Seeds,
    names,
    seed_list,
    workspace,
)
from daedl_bench.results import Row
from daedl_bench.runner import append_missing, trial_rows
from daedl_bench.spec import Protocol, Trial, catalogue
from daedl_bench.workspace import VALIDATION, Predictor

EXPERIMENT = "mnist-quick-choice"  # of the rows, which no report shows
ONE_CYCLE = "one cycle"  # first words of a candidate's name
LEFT_OUT = {102: (0, 1, 2), 103: (3, 4, 5), 104: (6, 7, 8)}  # digits, by seed
RATES = (4e-3, 1e-3)
ENOUGH = 0.99  # validation accuracy at which no other rate is tried (chosen)
# Epochs, batch size and rate. Rates first, then one epoch more at the best of them, then half the batch,
# then as many epochs as a fifth of the paper's time allows at three rates, then half the batch again.
RECIPES = (
    (4, 64, 3e-3),
    (4, 64, 6e-3),
    (4, 64, 1.2e-2),
    (5, 64, 6e-3),
    (5, 32, 4e-3),
    (8, 32, 4e-3),
    (8, 32, 2e-3),
    (8, 32, 1e-3),
    (7, 16, 2e-3),
    (7, 16, 1e-3),
)
# Candidates whose losses differ by less than seeds do: `unknown` compares these.
TIED = ((8, 32, 4e-3), (8, 32, 2e-3), (7, 16, 2e-3), (7, 16, 1e-3))
Only = Annotated[str, typer.Option(help="Candidates whose name contains this.")]
app = typer.Typer(help=__doc__)


def name(training: Mapping[str, Any]) -> str:
    """The name of a candidate, which states its settings."""
    text = ONE_CYCLE + ", {max_epochs} epochs, batch {batch_size}, rate {learning_rate:g}"
    return text.format_map(training)


def candidates(
    recipes: Sequence[tuple[int, int, float]] = RECIPES, only: str = ""
) -> Iterator[Protocol]:
    """The protocols that are compared."""
    paper = catalogue().protocols["mnist-paper"]
    for epochs, size, rate in recipes:
        training = {
            "max_epochs": epochs,
            "batch_size": size,
            "learning_rate": rate,
            "schedule": "one-cycle",
        }
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


def _one_split(sets: Mapping[str, ImageSet], name: str, split: str) -> ImageSet:
    """The dataset of this name, whatever the split."""
    del split
    return sets[name]


def selected(epochs: Sequence[Epoch]) -> Epoch:
    """The best epoch of the training phase; losses of other phases can't be compared with it."""
    training = [each for each in epochs if each.phase == "training"]
    return min(training, key=lambda each: each.val_loss or 0.0)


def validation_rows(predictor: Predictor, label: str) -> list[Row]:
    """Figures of the selected epoch, of the method's predictions, and the cost of training."""
    best, (seconds, *_) = selected(predictor.epochs), predictor.costs()
    predicted = evaluate.classification(*predictor.predict(VALIDATION))
    figures = [
        Measured("training", "loss", "validation", best.val_loss or 0.0),
        Measured("training", "labels", "accuracy", best.val_accuracy or 0.0),
        seconds,
        *(each for each in predicted if each.metric in ("brier", "nll")),
    ]
    name = {"experiment": EXPERIMENT}
    return trial_rows(figures, predictor.trial, label, "validation", seconds.value, **name)


@app.callback()
def _options(threads: Threads = 1) -> None:
    keep_freed_memory()
    torch.set_num_threads(threads or 1)


@app.command()
def choose(
    data: DataRoot = None,
    cache: CacheFolder = None,
    folder: ResultsFolder = RESULTS,
    seeds: Seeds = "100,101",
    only: Only = "",
) -> None:
    """Train the candidates; rows to mnist_quick_choice.jsonl."""
    path, space = folder / "mnist_quick_choice.jsonl", workspace(data, cache, Progress())
    method, held = catalogue().method("daedl"), {row.spec for row in results.load(path)}
    for seed in seed_list(seeds):
        for protocol in candidates(only=only):
            trial = Trial(protocol, method, seed)
            if trial.key not in held:
                space.progress.starts(f"{protocol.name} · seed {seed}")
                results.append(path, validation_rows(space.prepare(trial), "daedl"))


@app.command()
def unknown(
    data: DataRoot = None,
    cache: CacheFolder = None,
    folder: ResultsFolder = RESULTS,
    seeds: Seeds = "102-104",
    only: Only = "",
) -> None:
    """Train without three digits, and detect them; rows to mnist_quick_unknown.jsonl."""
    path, space = folder / "mnist_quick_unknown.jsonl", workspace(data, cache, Progress())
    method, held = catalogue().method("daedl"), {row.spec for row in results.load(path)}
    images = space.load("mnist", "train")
    for seed in seed_list(seeds):
        sets = {each.name: each for each in split_digits(images, LEFT_OUT[seed])}
        known, others = sets.values()
        for candidate in candidates(TIED, only):
            trial = Trial(without_digits(candidate, known), method, seed)
            if trial.key in held:
                continue
            space.progress.starts(f"{candidate.name} · {known.name} · seed {seed}")
            predictor = replace(space, load=partial(_one_split, sets)).prepare(trial)
            inside, targets = predictor.predict(VALIDATION)
            outside, _ = predictor.predict(others.name)
            figures = [
                *evaluate.classification(inside, targets),
                *evaluate.ood_detection(inside, outside),
            ]
            results.append(
                path, trial_rows(figures, trial, "daedl", others.name, experiment=EXPERIMENT)
            )


@app.command()
def rates(
    data: DataRoot = None,
    cache: CacheFolder = None,
    folder: ResultsFolder = RESULTS,
    methods: Methods = "edl",
) -> None:
    """Train methods at one rate after the other until one is good enough; rows to mnist_rates.jsonl."""
    path, space = folder / "mnist_rates.jsonl", workspace(data, cache, Progress())
    rows = results.load(path)
    for label in names(methods):
        for rate in RATES:
            trial = catalogue().trial(label, rate_protocol(rate), 0)
            held = [row for row in rows if row.spec == trial.key]
            if not held:
                space.progress.starts(f"{label} · {trial.protocol.name}")
                held = validation_rows(space.prepare(trial), label)
                results.append(path, held)
            if max(row.value or 0.0 for row in held if row.metric == "accuracy") >= ENOUGH:
                break


@app.command()
def check(
    data: DataRoot = None,
    cache: CacheFolder = None,
    folder: ResultsFolder = RESULTS,
    seeds: Seeds = "100",
    only: Only = "",
) -> None:
    """Measure candidates on test and OOD images; rows to mnist_quick_checks.jsonl."""
    space, specs = workspace(data, cache, Progress()), catalogue()
    experiments = [specs.experiment(name) for name in ("mnist-ood", "mnist-shift")]
    path, changes = folder / "mnist_quick_checks.jsonl", {"experiment": EXPERIMENT}
    for protocol in candidates(only=only):
        for seed in seed_list(seeds):
            space.progress.starts(f"{protocol.name} · seed {seed}")
            predictor = space.prepare(Trial(protocol, specs.method("daedl"), seed))
            append_missing(path, experiments, "daedl", predictor, **changes)
