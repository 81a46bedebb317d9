"""Which blocks the density sees, how they are pooled and how they are joined, by known data alone.

    python -m daedl_bench study depths measure --network photos --seeds 2
    python -m daedl_bench study depths show

For each network all blocks are computed once, and every choice of blocks, pooling, normalisation and
covariance is fitted to them. Figures on held-out images of known classes: AUROC of alpha0 between these
images and their corruptions, Brier score, accuracy, and the share with a density score below 0.05. No OOD
dataset is read. Rows are appended to benchmarks/results/depths.jsonl.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from torch import Tensor

from daedl import Classifier, backbones, fit, metrics
from daedl.cli.common import using_threads
from daedl.data import ImageSet
from daedl.density.effect import NEAR
from daedl.density.fitting import Covariance
from daedl.evaluate import Measured
from daedl.methods import DAEDL, EDLPlus
from daedl.networks import Backbone, WhitenNet
from daedl.networks.depths import Pooling
from daedl.outputs import Outputs
from daedl.training import OneCycle, sgd
from daedl_bench import datasets, results
from daedl_bench.corruptions import corrupt
from daedl_bench.options import RESULTS, DataRoot
from daedl_bench.studies import cifar10_cpu

PATH = RESULTS / "depths.jsonl"
EXPERIMENT = "depths"
app = typer.Typer(no_args_is_help=True, help=__doc__)

# One of each kind of CIFAR-10-C, at the middle severity (chosen).
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate")
SEVERITY = 3
HELD_OUT = 300  # images that are corrupted (chosen)
PHOTOS = (0, 1, 3, 8)  # classes of CIFAR-10: airplane, automobile, cat, ship
PER_CLASS = 600  # training images of each
PIXELS = 128  # the default when the rows were measured
TRAINING, FITTED, EPOCHS = (
    10_000,
    5_000,
    3,
)  # images and passes of WhitenNet (chosen: minutes on one core)
RECIPE = cifar10_cpu.Candidate(
    "depths", (cifar10_cpu.Stage(cifar10_cpu.EVIDENTIAL, EPOCHS, 0.8),), batch_size=256, clip=1.0
)


@dataclass(frozen=True)
class Choice:
    """Blocks whose outputs the density sees, and its settings."""

    blocks: tuple[str, ...]
    pooling: Pooling
    normalize: bool
    covariance: Covariance

    def __str__(self) -> str:
        normalized = "normalised" if self.normalize else "raw"
        return f"{'+'.join(self.blocks)}, {self.pooling}, {normalized}, {self.covariance}"


@dataclass(frozen=True)
class Computed:
    """Outputs of one network with all blocks as features, pooled by "mean-std".

    Attributes:
        widths: columns per block, in order; the block "pool" has no positions.
        fitted: outputs and labels of the training images that the density is fitted to.
        held_out: outputs and labels of the held-out images.
        corrupted: outputs of their corruptions.
    """

    widths: Mapping[str, int]
    fitted: tuple[Outputs, Tensor]
    held_out: tuple[Outputs, Tensor]
    corrupted: Mapping[str, Outputs]

    def select(self, outputs: Outputs, choice: Choice) -> Outputs:
        """`outputs` with the features of `choice`."""
        parts = dict(
            zip(
                self.widths,
                torch.split(outputs.features, list(self.widths.values()), dim=1),
                strict=True,
            )
        )
        chosen = [parts[name] for name in choice.blocks]
        if choice.pooling == "mean":
            named = zip(choice.blocks, chosen, strict=True)
            chosen = [part if name == "pool" else part.chunk(2, 1)[0] for name, part in named]
        return Outputs.of_parts(chosen, outputs.logits)


def choices(
    depths: Iterable[tuple[str, ...]], covariances: Iterable[Covariance]
) -> Iterator[Choice]:
    """Every combination; the last block alone has no positions, and a single part no other block."""
    poolings: tuple[Pooling, ...] = ("mean", "mean-std")
    for blocks, pooling, normalize, covariance in product(
        depths, poolings, (True, False), covariances
    ):
        pooled = pooling == "mean" or blocks != ("pool",)
        if pooled and (covariance != "block" or len(blocks) > 1):
            yield Choice(blocks, pooling, normalize, covariance)


NETWORKS: Mapping[str, tuple[Choice, ...]] = {
    "whitennet": tuple(
        choices(
            [("pool",), ("block2",), ("block2", "pool"), ("block1", "block2", "pool")],
            ("full", "tied", "diagonal", "block"),
        )
    ),
    # 600 images per class don't determine a covariance of 1,280 features each.
    "photos": tuple(
        choices(
            [("pool",), ("stage5",), ("stage5", "pool"), ("stage3", "stage5", "pool")],
            ("tied", "diagonal"),
        )
    ),
}


def whitennet(seed: int, data: Path | None) -> Computed:
    """A small network trained on CIFAR-10 with the evidential loss."""
    known = datasets.load("cifar10", "train", data, download=False)
    held_out, rest = known.random_split(HELD_OUT, seed)
    train, _ = rest.random_split(TRAINING, seed)
    torch.manual_seed(seed)
    network = WhitenNet(3, 10, features=("block1", "block2", "pool"), pooling="mean-std")
    network.whiten(cifar10_cpu.PREPROCESS(train.images[:5000], torch.float32))
    model = Classifier(network, EDLPlus(reduction="mean"), preprocess=cifar10_cpu.PREPROCESS)
    batches = train.batches(
        RECIPE.batch_size,
        shuffle=True,
        seed=seed,
        augment=cifar10_cpu.augmentation(RECIPE),
        drop_last=True,
    )
    (stage,) = RECIPE.stages
    fit(
        model,
        batches,
        max_epochs=EPOCHS,
        optimizer=sgd(stage.rate, RECIPE.momentum, RECIPE.decay),
        schedule=OneCycle(stage.rise, stage.start, stage.end),
        gradient_clip=RECIPE.clip,
        seed=seed,
        accelerator="cpu",
        precision=RECIPE.precision,
        progress=False,
    )
    widths = dict(zip(network.depths, network.parts, strict=True))
    corrupted = {name: model.collect(each)[0] for name, each in _corrupted(held_out, seed)}
    fitted = model.collect(train.subset(range(FITTED)))
    return Computed(widths, fitted, model.collect(held_out), corrupted)


def photos(seed: int, data: Path | None) -> Computed:
    """A pretrained EfficientNet-Lite0 with an evidential head, on four classes of CIFAR-10."""
    known = datasets.load("cifar10", "train", data, download=False)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    of_class = [order[known.labels[order] == c] for c in PHOTOS]
    each = HELD_OUT // len(PHOTOS)
    train, held_out = (
        _relabelled(known.subset(torch.cat([rows[part] for rows in of_class])))
        for part in (slice(each, each + PER_CLASS), slice(each))
    )
    pretrained = backbones.pretrained("efficientnet-lite0", PIXELS)
    size = pretrained.preprocess.shape[1]
    torch.manual_seed(seed)
    depths = ("stage3", "stage5", "pool")
    network = Backbone(pretrained.name, len(PHOTOS), size, features=depths, pooling="mean-std")
    network.load_pretrained(pretrained)
    model = Classifier(network, EDLPlus(), preprocess=pretrained.preprocess)

    def outputs(images: ImageSet) -> tuple[Outputs, Tensor]:
        return model.collect(images.converted(3, size))

    features, targets = outputs(train)
    head = Classifier(network.head(), EDLPlus(), preprocess=None)
    fit(head, (features.features, targets), max_epochs=30, seed=seed, progress=False)

    def with_logits(found: Outputs) -> Outputs:
        with torch.no_grad():
            return found._replace(logits=head.network.eval()(found.features).logits)

    known_outputs, known_targets = outputs(held_out)
    return Computed(
        dict(zip(network.depths, network.parts, strict=True)),
        (with_logits(features), targets),
        (with_logits(known_outputs), known_targets),
        {name: with_logits(outputs(each)[0]) for name, each in _corrupted(held_out, seed)},
    )


def measure(computed: Computed, choice: Choice | None) -> list[Measured]:
    """Figures of one choice; of the logits without a density for None."""
    known, labels = computed.held_out
    if choice is None:
        inside = EDLPlus().predict(known, None)
        others = [EDLPlus().predict(each, None) for each in computed.corrupted.values()]
    else:
        method = DAEDL(
            covariance=choice.covariance,
            normalize_features=choice.normalize,
            leave_one_out=True,
            normalizer="half-quantile",
        )
        outputs, targets = computed.fitted
        scorer = method.fit(computed.select(outputs, choice), targets)
        inside = method.predict(computed.select(known, choice), scorer)
        corrupted = (computed.select(each, choice) for each in computed.corrupted.values())
        others = [method.predict(each, scorer) for each in corrupted]
    detected = [
        metrics.auroc(-inside.dirichlet.log_precision, -other.dirichlet.log_precision)
        for other in others
    ]
    figures = [
        Measured("known", "probs", "brier", metrics.brier(inside.probs, labels)),
        Measured("known", "labels", "accuracy", metrics.accuracy(inside.labels, labels)),
        Measured("shift", "epistemic", "auroc", sum(detected) / len(detected)),
    ]
    if inside.density_score is not None:
        near = float((inside.density_score < NEAR).double().mean())
        figures.insert(0, Measured("known", "density", "below 0.05", near))
    each = zip(computed.corrupted, detected, strict=True)
    return [*(Measured("shift", "epistemic", f"auroc {c}", value) for c, value in each), *figures]


@app.command("measure")
def measure_all(
    network: Annotated[Literal["whitennet", "photos"], typer.Option()],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds with rows are skipped.")] = 2,
    data: DataRoot = None,
) -> None:
    """Append the figures of every choice for each seed."""
    done = {(row.protocol, row.seed) for row in results.load(PATH)}
    compute = {"whitennet": whitennet, "photos": photos}[network]
    for seed in range(seeds):
        if (network, seed) in done:
            continue
        with using_threads(1):
            computed = compute(seed, data)
            for choice in (None, *NETWORKS[network]):
                started = time.perf_counter()
                found = measure(computed, choice)
                seconds = time.perf_counter() - started
                results.append(PATH, [_row(network, choice, seed, seconds, each) for each in found])
                typer.echo(f"{choice}: {found[-1].value:.4f}")


def _row(
    network: str, choice: Choice | None, seed: int, seconds: float, measured: Measured
) -> results.Row:
    return results.row(
        measured,
        experiment=EXPERIMENT,
        method=str(choice or "no density"),
        data="held out",
        seed=seed,
        seconds=seconds,
        protocol=network,
    )


@app.command()
def show() -> None:
    """Print mean figures over seeds as a Markdown table per network, the largest AUROC first."""
    shown = ["auroc", "brier", "accuracy", "below 0.05"]
    for network, rows in results.frame(results.load(PATH)).groupby("protocol"):
        table = rows.pivot_table("value", "method", "metric")[shown]
        typer.echo(f"| {network} | {' | '.join(shown)} |\n{'|---' * 5}|")
        for name, values in table.sort_values("auroc", ascending=False).iterrows():
            typer.echo(f"| {name} | {' | '.join(f'{value:.4f}' for value in values)} |")


def _corrupted(images: ImageSet, seed: int) -> Iterator[tuple[str, ImageSet]]:
    for name in CORRUPTIONS:
        yield (
            name,
            replace(images, pixels=corrupt(images.images, name, SEVERITY, "cifar10-c", seed)),
        )


def _relabelled(images: ImageSet) -> ImageSet:
    """Labels 0, 1, ... in the order of `PHOTOS`."""
    labels = torch.tensor([PHOTOS.index(label) for label in images.labels.tolist()])
    return replace(images, labels=labels, class_names=None)
