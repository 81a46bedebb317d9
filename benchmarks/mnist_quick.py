"""The choice of the `mnist-quick` protocol, by figures on validation images.

    python benchmarks/mnist_quick.py choose --data ROOT --cache FOLDER   rows to mnist_quick_choice.jsonl
    python benchmarks/mnist_quick.py unknown --data ROOT ...             rows to mnist_quick_unknown.jsonl
    python benchmarks/mnist_quick.py rates --methods edl,i-edl ...       rows to mnist_rates.jsonl
    python benchmarks/mnist_quick.py check --only "8 epochs" ...         rows to mnist_quick_checks.jsonl
    python benchmarks/pages.py                                           their tables, in docs/experiments.md

`choose` trains DAEDL under every candidate and keeps, on the validation images, the network's loss and
accuracy in the epoch that `fit` would keep, and the Brier score and the NLL of the whole method, density
included; and the seconds. Neither test images nor unknown ones are read. Candidates are trained with
seeds 100 and 101, which no experiment uses. Of the candidates that take at most a fifth of the time of
`mnist-paper`, the one with the lowest loss, as mean over the seeds, becomes `mnist-quick`: nothing
else that validation images tell depends on the total concentration, by which unknown images are told, and
Brier score and NLL see what the density costs known images, not what it is good for. That is the rate
4e-3 with batches of 32, ahead of three others by less than seeds differ.

`unknown` asks, of training images alone, what `mnist-quick` is for: how well are unknown images told from
known ones? It was added because figures on test images (`check`) say that 4e-3 tells uniform noise less
well than lower rates do; they have no part in its answer. Three digits are left out of training and
validation; the others' validation images are known, all training images of the three are unknown. Asked
are the four candidates whose losses differ by less than seeds do. The rule, fixed before any of them was
trained: the highest AUROC, as mean over three triples of digits, each with a seed of its own, and over the
aleatoric and the epistemic score. By it, too, the rate 4e-3 with batches of 32 leads.

`rates` trains each method under the `mnist-brief` protocol, with seed 0, whose network the experiments use
afterwards. If its accuracy on the validation images stays below 99%, which softmax and DAEDL pass, it is
trained again at a quarter of the learning rate, and the rate with the lower validation loss becomes the
method's, in `rates` of the protocol. That loss is the method's own, so it compares rates, not methods.

`check` asks candidates what the experiments ask: figures on test images and unknown ones. They tell what a
choice is worth, and choose nothing. Networks that `choose` didn't train are trained now.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from daedl import data
from daedl import evaluate as tasks
from daedl.cli.memory import keep_freed_memory
from daedl.data import ImageSet
from daedl.demo.training import Progress
from daedl.training import Epoch, History
from daedl_bench import rows
from daedl_bench.cell import Cell
from daedl_bench.rows import Measured, Row
from daedl_bench.runner import measure
from daedl_bench.spec import Protocol, catalogue
from daedl_bench.store import Store

RESULTS = Path(__file__).parent / "results"
PATH, RATES_PATH = RESULTS / "mnist_quick_choice.jsonl", RESULTS / "mnist_rates.jsonl"
CHECKS_PATH, EXPERIMENT = RESULTS / "mnist_quick_checks.jsonl", "mnist-quick-choice"
UNKNOWN_PATH = RESULTS / "mnist_quick_unknown.jsonl"
LEFT_OUT = {102: (0, 1, 2), 103: (3, 4, 5), 104: (6, 7, 8)}  # digits, by the seed
RATES = (4e-3, 1e-3)
ENOUGH = 0.99  # accuracy on validation images at which no other rate is tried (chosen)
SEEDS = (100, 101)
OF_METHOD = ("brier", "nll")  # of the predictions, density included
# Rates first, then one epoch more at the best of them, then half the batch at a lower rate, then as many
# epochs as a fifth of the paper's time allows, at that rate, at half of it and at a quarter, then half the
# batch again, whose epochs take longer, at the lower two of these.
ONE_CYCLE = (
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


ASKED = ((8, 32, 4e-3), (8, 32, 2e-3), (7, 16, 2e-3), (7, 16, 1e-3))  # about unknown digits


def candidates(recipes: Iterable[tuple[int, int, float]] = ONE_CYCLE) -> Iterator[Protocol]:
    """What is compared, by a name that tells the settings."""
    paper = catalogue().protocols["mnist-paper"]
    for epochs, size, rate in recipes:
        training: dict[str, Any] = {
            "max_epochs": epochs,
            "batch_size": size,
            "learning_rate": rate,
            "schedule": "one-cycle",
        }
        name = f"one cycle, {epochs} epochs, batch {size}, rate {rate:g}"
        yield replace(paper, name=name, training=training)


def kept(history: History) -> Epoch:
    """The best epoch of the training proper: of other phases the loss is another one."""
    epochs = [each for each in history.epochs if each.phase == "training"]
    return min(epochs, key=lambda each: each.val_loss or 0.0)


def measured(cell: Cell, label: str = "daedl") -> list[Row]:
    """Figures of the epoch that was kept, of the method's predictions, and what training cost."""
    history = cell.history
    best = kept(history)
    seconds = sum(each.seconds for each in history.epochs)
    figures = [
        Measured("training", "loss", "validation", best.val_loss or 0.0),
        Measured("training", "labels", "accuracy", best.val_accuracy or 0.0),
        Measured("cost", "training", "seconds", seconds),
        *(each for each in tasks.classification(*cell.validated()) if each.metric in OF_METHOD),
    ]
    return [
        cell.row(each, experiment=EXPERIMENT, label=label, data="validation", seconds=seconds)
        for each in figures
    ]


def choose(cache: Path, root: Path | None, seeds: list[int], only: str) -> None:
    """Train what isn't there yet and append its rows."""
    found = rows.load(PATH) if PATH.exists() else []
    held = {(row.spec, row.metric) for row in found}
    load, method = partial(data.load, root=root), catalogue().method("daedl")
    progress = Progress()
    for seed in seeds:
        for protocol in candidates():
            cell = Cell(protocol, method, seed, load, Store(cache), progress)
            # What was measured before more was asked keeps what it has, if its network is gone.
            done = (cell.key, OF_METHOD[-1] if cell.trained else "validation") in held
            if done or only not in protocol.name:
                continue
            progress.starts(f"{protocol.name} · seed {seed}")
            rows.append(PATH, [row for row in measured(cell) if (row.spec, row.metric) not in held])


def unknown(cache: Path, root: Path | None, seeds: list[int], only: str) -> None:
    """Train without some digits what isn't there yet, and append how well these are told."""
    held = {row.spec for row in rows.load(UNKNOWN_PATH)} if UNKNOWN_PATH.exists() else set()
    images, method = data.load("mnist", "train", root), catalogue().method("daedl")
    progress = Progress()
    for seed in seeds:
        sets = parted(images, LEFT_OUT[seed])
        known, others = sets
        held_out = len(sets[known]) // 5  # as many as 12,000 of 60,000
        for candidate in candidates(ASKED):
            protocol = replace(
                candidate,
                data=known,
                split=(len(sets[known]) - held_out, held_out),
                network={**candidate.network, "num_classes": sets[known].num_classes},
            )
            cell = Cell(protocol, method, seed, partial(taken, sets), Store(cache), progress)
            if cell.key in held or only not in protocol.name:
                continue
            progress.starts(f"{protocol.name} · {known} · seed {seed}")
            inside, targets = cell.validated()
            figures = [
                *tasks.classification(inside, targets),
                *tasks.ood_detection(inside, cell.predict(others)[0]),
            ]
            found = [
                cell.row(each, experiment=EXPERIMENT, label="daedl", data=others)
                for each in figures
            ]
            rows.append(UNKNOWN_PATH, found)


def taken(sets: Mapping[str, ImageSet], name: str, _split: str) -> ImageSet:
    """The set of this name, which has one split."""
    return sets[name]


def parted(images: ImageSet, digits: tuple[int, ...]) -> dict[str, ImageSet]:
    """The images of all other digits, whose labels are counted anew, and of `digits`, which have none."""
    known = torch.tensor([digit for digit in range(10) if digit not in digits])
    is_known = torch.isin(images.labels, known)
    inside, outside = (images.subset(each.nonzero().squeeze(1)) for each in (is_known, ~is_known))
    name = f"digits {', '.join(map(str, digits))}"
    return {
        f"mnist without {name}": replace(
            inside, labels=torch.searchsorted(known, inside.labels), class_names=None
        ),
        name: replace(outside, labels=torch.zeros_like(outside.labels), class_names=None),
    }


def rates(cache: Path, root: Path | None, labels: list[str]) -> None:
    """Train each method at one rate after the other until it is good enough, and append its rows."""
    found = rows.load(RATES_PATH) if RATES_PATH.exists() else []
    accuracies = {row.spec: row.value or 0.0 for row in found if row.metric == "accuracy"}
    load, specs, progress = partial(data.load, root=root), catalogue(), Progress()
    brief = replace(specs.protocols["mnist-brief"], rates={})
    for label in labels:
        for rate in RATES:
            name = f"brief, rate {rate:g}"
            training = {**brief.training, "learning_rate": rate}
            protocol = replace(brief, name=name, training=training)
            cell = Cell(protocol, specs.method(label, protocol), 0, load, Store(cache), progress)
            if cell.key not in accuracies:
                progress.starts(f"{label} · {name}")
                rows.append(RATES_PATH, measured(cell, label))
                accuracies[cell.key] = kept(cell.history).val_accuracy or 0.0
            if accuracies[cell.key] >= ENOUGH:
                break


def check(cache: Path, root: Path | None, seeds: list[int], only: str) -> None:
    """Measure candidates on test and unknown images, and append the rows."""
    held = (
        {(row.spec, row.data) for row in rows.load(CHECKS_PATH)} if CHECKS_PATH.exists() else set()
    )
    load, specs = partial(data.load, root=root), catalogue()
    experiments = [specs.experiment(name) for name in ("mnist-ood", "mnist-shift")]
    progress = Progress()
    for protocol, seed in product(candidates(), seeds):
        if only not in protocol.name:
            continue
        progress.starts(f"{protocol.name} · seed {seed}")
        cell = Cell(protocol, specs.method("daedl"), seed, load, Store(cache), progress)
        for experiment, unit in ((each, unit) for each in experiments for unit in each.units):
            if (cell.key, unit) not in held:
                for _, found in measure(experiment, "daedl", cell, unit):
                    # Not of an experiment: no report shows a candidate's figures.
                    rows.append(CHECKS_PATH, [replace(row, experiment=EXPERIMENT) for row in found])
                held.add((cell.key, unit))


def main() -> int:
    """Choose, ask about unknown digits, try rates, or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("choose", "unknown", "rates", "check"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", help="not for `rates`; with commas between")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="candidates whose name holds this")
    parser.add_argument("--methods", default="edl", help="for `rates`, with commas between")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    seeds = [int(each) for each in options.seeds.split(",")] if options.seeds else None
    match options.what:
        case "choose":
            choose(options.cache, options.data, seeds or list(SEEDS), options.only)
        case "unknown":
            unknown(options.cache, options.data, seeds or list(LEFT_OUT), options.only)
        case "rates":
            rates(options.cache, options.data, options.methods.split(","))
        case _:
            check(options.cache, options.data, seeds or [SEEDS[0]], options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
