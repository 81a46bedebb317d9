"""Validation accuracy of evidential losses with 2, 10, 150 and 1,000 classes.

Every network is that of `DAEDLClassifier`, or for photos that of `daedl train`, trained without its density,
which does not change the class. The samples are those that the panel holds out for calibration, for photos
more training images of CIFAR-10; no test sample and no OOD sample is used. Rows are appended to losses.jsonl
as they are measured; rows that exist are not measured again.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from daedl import DAEDLClassifier
from daedl.cli.common import using_threads
from daedl.cli.training_model import build_model, choose_recipe
from daedl.data import ImageSet
from daedl.evaluate import Measured
from daedl.methods import Softmax
from daedl.methods.base import Method
from daedl.methods.edl_plus import PUBLISHED_CLASSES, EDLPlus
from daedl.networks import MLP, FeatureHead, Network
from daedl.spectral import SpectralNorm
from daedl.training import fit
from daedl_bench import datasets, options, results
from daedl_bench.names import DASH, markdown
from daedl_bench.spec import digest
from daedl_bench.studies.panel import tables
from daedl_bench.studies.panel.photos import TRAIN
from daedl_bench.studies.panel.tables import Table
from daedl_bench.summary import Results, Summary

FILE, EXPERIMENT = "losses.jsonl", "losses"
VALIDATION = 0.2  # of `daedl train`
HELD_OUT = 1000  # photos per class (chosen: one standard error is 0.4 points)
FIRST = 10  # epochs of cross-entropy, half of the fewest that DAEDLClassifier trains for (chosen)
app = typer.Typer()


class Problem(NamedTuple):
    """Classes and samples; `embeddings` are classified as `DAEDLClassifier` does.

    Problems without a table are photos.
    """

    title: str
    classes: int
    load: Callable[[int, Path | None], Table] | None = None
    embeddings: bool = False


def _digits(seed: int, data: Path | None) -> Table:
    del data
    found = load_digits()
    return tables.split(found.data, found.target, seed, {})


PROBLEMS: Mapping[str, Problem] = {
    "moons": Problem("two moons", 2, lambda seed, _: tables.two_moons(seed)),
    "digits": Problem("digits", 10, _digits),
    "clinc150": Problem("CLINC150 embeddings", 150, tables.clinc150, embeddings=True),
    "clusters": Problem("clusters", 1000, lambda seed, _: tables.many_classes(seed)),
    "photos": Problem("photos from scratch", 10),
}


@dataclass(frozen=True, kw_only=True)
class CrossEntropyFirst(EDLPlus):
    """EDL+ after some epochs of cross-entropy."""

    name = "edl+ after cross-entropy"

    def loss(self, outputs: Any, targets: Tensor, epoch: float) -> Tensor:
        """Cross-entropy, then the loss of EDL+, (B,)."""
        if epoch < FIRST:
            return cross_entropy(outputs.logits, targets, reduction="none")
        return super().loss(outputs, targets, epoch)


class Scale(nn.Module):
    """Multiplies logits by a learned factor, initially 1."""

    def __init__(self) -> None:
        super().__init__()
        self.log_factor = nn.Parameter(Tensor([0.0]))

    def forward(self, logits: Tensor) -> Tensor:
        """Scales logits (B, C)."""
        return self.log_factor.exp() * logits


def scaled(embeddings: bool, features: int, classes: int) -> Network:
    """The default network with a learned scale behind its last layer."""
    network = FeatureHead.for_embeddings if embeddings else MLP
    built = network(features, classes)
    built.classifier.append(Scale())
    return built


def losses(classes: int) -> Mapping[str, Method]:
    """Losses by title, for a number of classes."""
    auto: Mapping[str, Any] = {"spectral": "auto"}
    # The default divides its KL weight by the square of this, up to ten classes by 1.
    excess = classes / PUBLISHED_CLASSES
    default = max(1.0, excess) ** 2
    weight = EDLPlus().kl_weight
    return {
        "softmax": Softmax(**auto),
        "KL weight 0.05": EDLPlus(kl_weight=weight * default, **auto),
        "KL weight 0.05 · 10 / C": EDLPlus(kl_weight=weight * default / excess, **auto),
        DEFAULT: EDLPlus(**auto),
        FIRST_CROSS_ENTROPY: CrossEntropyFirst(**auto),
        "the default, all layers with norm 1": EDLPlus(spectral=SpectralNorm()),
        "the default, all layers with norm 3": EDLPlus(spectral=SpectralNorm(coefficient=3.0)),
        SCALED: EDLPlus(spectral=SpectralNorm()),
    }


DEFAULT = "KL weight 0.05 min(1, 10 / C)²: the default"
FIRST_CROSS_ENTROPY = f"the default after {FIRST} epochs of cross-entropy"
SCALED = "the default, all layers with norm 1, a learned scale behind them"
# What differs with ten classes; a training takes minutes.
OF_PHOTOS = ("softmax", DEFAULT, FIRST_CROSS_ENTROPY)


def key(name: str, title: str, seed: int) -> str:
    """Identifies the row of a problem, a loss and a seed."""
    method, estimator = losses(PROBLEMS[name].classes)[title], DAEDLClassifier().get_params()
    settings = [type(method).__name__, repr(asdict(method)), repr(estimator)]
    return digest([name, title, *settings, FIRST, seed])


@app.command(help=__doc__)
def main(
    only: Annotated[str, typer.Option(help="Problems, separated by commas.")] = ",".join(PROBLEMS),
    seeds: options.Seeds = "0-2",
    data: options.DataRoot = None,
    folder: options.ResultsFolder = options.RESULTS,
) -> None:
    done = {row.spec for row in results.load(folder / FILE)}
    for name, seed in product(options.names(only), options.seed_list(seeds)):
        problem = PROBLEMS[name]
        for title, method in losses(problem.classes).items():
            if key(name, title, seed) in done or not (problem.load or title in OF_PHOTOS):
                continue
            with using_threads(1):
                value = accuracy(problem, method, seed, data, scale=title == SCALED)
            row = results.row(
                Measured("known", "labels", "accuracy", value),
                experiment=EXPERIMENT,
                method=title,
                data=name,
                seed=seed,
                spec=key(name, title, seed),
            )
            results.append(folder / FILE, [row])
            typer.echo(f"{name}, seed {seed}, {title}: {value:.1%}")


def accuracy(
    problem: Problem, method: Method, seed: int, data: Path | None, scale: bool = False
) -> float:
    """Accuracy on the held-out samples."""
    if problem.load is None:
        return accuracy_on_photos(*photos(data), method, seed)
    table = problem.load(seed, data)
    network = partial(scaled, problem.embeddings) if scale else None
    estimator = DAEDLClassifier(method, network=network, random_state=seed).fit(*table.train)
    return float(estimator.score(*table.calibration))


def photos(data: Path | None) -> tuple[ImageSet, ImageSet]:
    """As many training images of CIFAR-10 as `daedl train` keeps in the panel, and others to evaluate on."""
    known = datasets.load("cifar10", "train", data, download=False)
    of_class = [(known.labels == c).nonzero().flatten() for c in range(known.num_classes)]
    number = round(TRAIN * (1 - VALIDATION))
    parts = (slice(number), slice(TRAIN, TRAIN + HELD_OUT))
    train, held_out = (torch.cat([rows[part] for rows in of_class]) for part in parts)
    return known.subset(train), known.subset(held_out)


def accuracy_on_photos(train: ImageSet, held_out: ImageSet, method: Method, seed: int) -> float:
    """Accuracy on `held_out` after training as `daedl train` does."""
    recipe = choose_recipe("", train)
    model = build_model(recipe, method, train, seed, None)
    batches = train.batches(
        recipe.batch_size, shuffle=True, seed=seed, augment=recipe.augment, drop_last=True
    )
    fit(model, batches, seed=seed, progress=False, **recipe.options())
    return float((model.predict(held_out.images).labels == held_out.labels).double().mean())


def table(found: Results) -> str:
    """One line per loss, one column per problem."""
    rows = found.every_row
    rows = rows[rows["experiment"] == EXPERIMENT]
    lines = []
    for title in losses(PUBLISHED_CLASSES):
        cells = []
        for name in PROBLEMS:
            values = rows[(rows["method"] == title) & (rows["data"] == name)]["value"]
            shown = Summary(values.mean(), values.std(), len(values))
            cells.append(shown.text(digits=1, count=True) if len(values) else DASH)
        lines.append([title, *cells])
    head = ["", *(f"{each.title}, {each.classes:,} classes" for each in PROBLEMS.values())]
    return markdown(head, lines)


TABLES = {"losses": table}
