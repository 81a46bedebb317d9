"""The demo's digits over several seeds, and the choice of their settings on validation data.

    python benchmarks/digits.py measure --seeds 5     rows to results/digits.jsonl
    python benchmarks/digits.py show                  these rows as a table in Markdown
    python benchmarks/digits.py choose --seeds 3      rows to results/digits_choice.jsonl

`choose` looks at the known digits' validation images alone: neither test images nor unknown ones.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console

from daedl import evaluate as tasks
from daedl.demo import digits
from daedl.demo.training import Progress, Trained, Training, train_methods
from daedl.density import NORMALIZERS, DensityWarning
from daedl.density.statistics import Structure
from daedl.methods import DAEDL, EDL, Method, Softmax
from daedl.networks import ConvNet
from daedl_bench import rows
from daedl_bench.report.summary import Summary
from daedl_bench.report.tables import DASH, text
from daedl_bench.rows import Measured

RESULTS = Path(__file__).parent / "results"
PATIENT = digits.Settings().training


def candidates() -> Iterator[tuple[str, Method, Training]]:
    """What is compared, by a name that tells the settings."""
    for rate in (1e-3, 3e-3):
        training = replace(PATIENT, learning_rate=rate)
        yield f"softmax, rate {rate}", Softmax(), training
        for weight in (1.0, 0.05):
            yield f"edl, rate {rate}, kl {weight}", EDL(kl_weight=weight), training
        yield f"daedl, rate {rate}", DAEDL(), training
    yield "daedl, rate 0.001, batch 64", DAEDL(), replace(PATIENT, batch_size=64)


def choose(seed: int, progress: Progress) -> list[rows.Row]:
    """Validation figures of every candidate, and of every density on the first DAEDL's network."""
    settings = digits.Settings()
    data = digits.load(seed, settings)
    found = []
    for name, method, training in candidates():
        trained = train_methods(
            name,
            {method: training},
            lambda: ConvNet(1, len(settings.known), digits.IMAGE_SIZE),
            data.train,
            data.val,
            seed=seed,
            progress=progress,
        )[method.name]
        found += _rows(name, trained, data, seed)
        if name == "daedl, rate 0.001":
            found += _densities(trained, data, seed)
    return found


def _densities(trained: Trained, data: digits.Digits, seed: int) -> list[rows.Row]:
    found = []
    for covariance, normalizer, left_out in product(
        get_args(Structure), NORMALIZERS, (False, True)
    ):
        classifier = trained.classifier
        classifier.method = DAEDL(
            covariance=covariance, normalizer=normalizer, leave_one_out=left_out
        )
        classifier.fit_post_hoc([data.train])
        name = f"daedl, {covariance}, {normalizer}{', leave one out' if left_out else ''}"
        found += _rows(name, trained, data, seed)
    return found


def _rows(name: str, trained: Trained, data: digits.Digits, seed: int) -> list[rows.Row]:
    images, targets = data.val
    best = trained.history.epochs[trained.history.best_epoch]
    measured = [
        Measured("training", "loss", "validation", best.val_loss or 0.0),
        *tasks.classification(trained.classifier.predict(images), targets),
    ]
    return [
        rows.row(
            each,
            experiment="digits-choice",
            method=name,
            data="validation",
            seed=seed,
            seconds=trained.seconds,
        )
        for each in measured
    ]


def _measured(result: digits.Result) -> list[rows.Row]:
    """Every figure of a run."""
    return [
        rows.row(
            each,
            experiment="digits",
            method=method,
            data=data,
            seed=result.seed,
            seconds=result.trained[method].seconds,
        )
        for method, sets in result.measure().items()
        for data, figures in sets.items()
        for each in figures
    ]


def shown(found: list[rows.Row]) -> str:
    """Mean ± standard deviation over seeds of every figure, times 100, methods across, in Markdown."""
    names = list(dict.fromkeys(each.method for each in found))
    values = defaultdict(list)
    for each in found:
        if each.value is not None:
            values[each.data, each.task, each.score, each.metric, each.method].append(each.value)
    lines = [
        f"| data | task | score | metric | {' | '.join(names)} |",
        "|---" * (4 + len(names)) + "|",
    ]
    for key in dict.fromkeys(key[:4] for key in values):
        cells = [values.get((*key, name)) for name in names]
        told = [DASH if c is None else text(Summary.of(c), count=True) for c in cells]
        lines.append(f"| {' | '.join((*key, *told))} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or choose, appending a seed's rows as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("measure", "show", "choose"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.what == "show":
        print(shown(rows.load(RESULTS / "digits.jsonl")))
        return 0
    torch.set_num_threads(options.threads)
    progress = Progress(Console())
    path = RESULTS / ("digits.jsonl" if options.what == "measure" else "digits_choice.jsonl")
    done = {row.seed for row in rows.load(path)} if path.exists() else set()
    for seed in range(options.seeds):
        if seed in done:
            continue
        found = (
            _measured(digits.run(seed, progress=progress))
            if options.what == "measure"
            else choose(seed, progress)
        )
        rows.append(path, found)
    return 0


if __name__ == "__main__":
    import warnings

    # The candidates include densities that deserve the warning; that is what is being compared.
    warnings.simplefilter("ignore", DensityWarning)
    sys.exit(main())
