"""Accuracy of a linear head on frozen EfficientNet-Lite0 by image size, on known classes alone.

    python -m daedl_bench study head measure
    python -m daedl_bench study head show

Sets of four and of ten classes are drawn from the training images of CIFAR-10. In each split a fifth of a set
is for evaluation and a fifth of the rest for early stopping, as in `daedl train`. Logistic regression, whose
L2 penalty is selected by cross-validation, is the reference. Rows are appended to
benchmarks/results/head.jsonl.
"""

import time
from itertools import product
from typing import Annotated

import torch
import typer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from torch import Tensor

from daedl import Classifier, fit
from daedl.cli.common import using_threads
from daedl.evaluate import Measured
from daedl.training.feature_cache import FeatureCache
from daedl.training.frozen import features_of
from daedl_bench import datasets, results
from daedl_bench.options import RESULTS, DataRoot

PATH = RESULTS / "head.jsonl"
app = typer.Typer(no_args_is_help=True, help=__doc__)
SETS = {"four": ((0, 1, 3, 8), 600), "ten": (tuple(range(10)), 200)}  # classes, images of each
SIZES = (192, 128, 160)
PENALTIES = [3e-3, 1e-2, 3e-2, 1e-1, 1.0]  # inverse strengths of L2, around the selected ones


def accuracies(model: Classifier, rows: Tensor, labels: Tensor, seed: int) -> dict[str, float]:
    """Accuracy of both heads in one split."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    end, start = len(rows) // 5, len(rows) * 9 // 25
    new, held_out, train = order[:end], order[end:start], order[start:]
    torch.manual_seed(seed)
    head = Classifier(model.network.plain.head(), model.method, preprocess=None)  # type: ignore[operator]
    data = [(rows[part], labels[part]) for part in (train, held_out)]
    fit(head, *data, seed=seed, progress=False)
    last = rows[:, -model.network.parts[-1] :].numpy()
    logistic = GridSearchCV(LogisticRegression(max_iter=300), {"C": PENALTIES}, cv=3)
    logistic.fit(last[train], labels[train].numpy())
    return {
        "edl+": float((head.predict(rows[new]).labels == labels[new]).double().mean()),
        "logistic regression": float(logistic.score(last[new], labels[new].numpy())),
    }


@app.command()
def measure(splits: Annotated[int, typer.Option(min=1)] = 5, data: DataRoot = None) -> None:
    """Append the accuracies for each set, image size and split."""
    known = datasets.load("cifar10", "train", data, download=False)
    for size, (name, (classes, number)) in product(SIZES, SETS.items()):
        chosen = torch.cat([(known.labels == c).nonzero().flatten()[-number:] for c in classes])
        labels = torch.arange(len(classes)).repeat_interleave(number)
        model = Classifier.from_backbone(num_classes=len(classes), image_size=size, method="edl+")
        with using_threads(1):
            started = time.perf_counter()
            images = known.subset(chosen).converted(3, size)
            rows = features_of(model, images, FeatureCache(None, model), name)[0]
            seconds = time.perf_counter() - started
            for seed in range(splits):
                for method, value in accuracies(model, rows, labels, seed).items():
                    figure = name, Measured("known", "labels", "accuracy", value)
                    named = {"experiment": "head", "method": method, "protocol": f"{size} pixels"}
                    results.record(PATH, [figure], seed=seed, seconds=seconds, **named)


@app.command()
def show() -> None:
    """Print mean, smallest and largest accuracy over splits."""
    groups = results.frame(results.load(PATH)).groupby(["data", "protocol", "method"])
    typer.echo(groups["value"].agg(["mean", "min", "max"]).to_string())
