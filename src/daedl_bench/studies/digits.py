"""Digits of the demo over several seeds, and the selection of their settings.

`choose` uses validation images of digits 0 to 7 only: no test images, no OOD images.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from daedl import evaluate
from daedl.cli.common import using_threads
from daedl.demo import digits, table
from daedl.demo.training import Progress, Trained, Training, train_methods
from daedl.density import NORMALIZERS, DensityWarning
from daedl.evaluate import Measured
from daedl.methods import DAEDL, EDL, Method, Softmax
from daedl_bench import names, results
from daedl_bench.options import RESULTS, ResultsFolder
from daedl_bench.results import Row
from daedl_bench.two_moons import rows_of

Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; those with rows are skipped.")]
# The settings of the candidates, which were compared before the defaults changed.
CANDIDATE = DAEDL.as_published()
MEASURED, CHOICE = "digits.jsonl", "digits_choice.jsonl"
app = typer.Typer(no_args_is_help=True, help=__doc__)


@app.command("measure")
def measure_seeds(seeds: Seeds = 5, folder: ResultsFolder = RESULTS) -> None:
    """Append the figures of each seed to digits.jsonl."""
    _append(folder / MEASURED, seeds, measure)


@app.command("choose")
def choose_settings(seeds: Seeds = 3, folder: ResultsFolder = RESULTS) -> None:
    """Append validation figures of every candidate to digits_choice.jsonl."""
    _append(folder / CHOICE, seeds, choose)


@app.command()
def show(folder: ResultsFolder = RESULTS) -> None:
    """Print the rows of digits.jsonl as a Markdown table, with the conclusion."""
    print(markdown(results.load(folder / MEASURED)))


def _append(path: Path, seeds: int, study: Callable[[int, Progress], list[Row]]) -> None:
    # Rows of "daedl-loo" are of the former defaults, by an earlier version.
    done = {row.seed for row in results.load(path) if row.method != "daedl-loo"}
    with using_threads(1):
        for seed in sorted(set(range(seeds)) - done):
            results.append(path, study(seed, Progress()))


def measure(seed: int, progress: Progress) -> list[Row]:
    """All figures of one seed of the demo's digits."""
    return rows_of(digits.run(seed, progress=progress), experiment="digits")


def choose(seed: int, progress: Progress) -> list[Row]:
    """Validation figures of every candidate, and of every density on the network of DAEDL."""
    data = digits.load(seed)
    measured = []
    for name, method, training in candidates():
        title, plan = f"{name} · seed {seed}", {method: training}
        samples = data.train, data.val
        trained = train_methods(title, plan, digits.network, *samples, seed, progress)[method.name]
        measured += _validated(name, seed, trained, data)
        if (method, training) == (CANDIDATE, digits.TRAINING):
            measured += _densities(seed, trained, data)
    return measured


def candidates() -> Iterator[tuple[str, Method, Training]]:
    """Methods and training settings to compare, with names that state the settings."""
    base = digits.TRAINING
    for rate in (1e-3, 3e-3):
        training = replace(base, learning_rate=rate)
        yield f"softmax, rate {rate}", Softmax(), training
        for weight in (1.0, 0.05):
            yield f"edl, rate {rate}, kl {weight}", EDL(kl_weight=weight), training
        yield f"daedl, rate {rate}", CANDIDATE, training
    for size in (16, 64):
        yield f"daedl, rate 0.001, batch {size}", CANDIDATE, replace(base, batch_size=size)


def markdown(measured: Iterable[Row]) -> str:
    """Mean ± standard deviation over seeds, times 100, and the conclusion."""
    lines = table.summarize(_by_seed(measured))
    titles = list(lines[0].spreads)
    cells = [
        [line.question.text, line.question.name, *map(str, line.spreads.values())] for line in lines
    ]
    written = names.markdown(["", "metric", *titles], cells)
    return "\n".join([written, "", table.conclude(lines), "", *(f"- {line}" for line in lines)])


def _by_seed(measured: Iterable[Row]) -> list[table.Figures]:
    seeds: dict[int, dict[str, dict[str, list[Measured]]]] = {}
    for row in measured:
        value = math.nan if row.value is None else row.value
        figure = Measured(row.task, row.score, row.metric, value)
        datasets = seeds.setdefault(row.seed, {}).setdefault(row.method, {})
        datasets.setdefault(row.data, []).append(figure)
    return list(seeds.values())


def _densities(seed: int, trained: Trained, data: digits.Digits) -> list[Row]:
    measured = []
    options = product(("full", "tied", "diagonal"), NORMALIZERS, (False, True))
    for covariance, normalizer, leave_one_out in options:
        trained.classifier.method = DAEDL.as_published(
            covariance=covariance, normalizer=normalizer, leave_one_out=leave_one_out
        )
        with warnings.catch_warnings():
            # Some candidates degrade predictions; the comparison shows it.
            warnings.simplefilter("ignore", DensityWarning)
            trained.classifier.fit_post_hoc([data.train])
        name = f"daedl, {covariance}, {normalizer}{', leave one out' if leave_one_out else ''}"
        measured += _validated(name, seed, trained, data)
    return measured


def _validated(name: str, seed: int, trained: Trained, data: digits.Digits) -> list[Row]:
    images, targets = data.val
    loss = trained.history.epochs[trained.history.best_epoch].val_loss
    figures = evaluate.classification(trained.classifier.predict(images), targets)
    if loss is not None:
        figures = [Measured("training", "loss", "validation", loss), *figures]
    named = {"experiment": "digits-choice", "method": name, "data": "validation"}
    return results.rows(figures, seed=seed, seconds=trained.seconds, **named)
