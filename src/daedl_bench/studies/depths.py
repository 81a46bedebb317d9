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
from itertools import product, starmap
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from torch import Tensor

from daedl import Classifier, fit, metrics
from daedl.cli.common import using_threads
from daedl.data import ImageSet
from daedl.density.effect import NEAR
from daedl.density.fitting import Covariance
from daedl.evaluate import Measured
from daedl.methods import DAEDL, EDLPlus
from daedl.networks import WhitenNet
from daedl.networks.depths import Pooling
from daedl.outputs import Outputs
from daedl.training.feature_cache import FeatureCache
from daedl.training.frozen import features_of, head_of
from daedl_bench import datasets, results
from daedl_bench.corruptions import corrupt
from daedl_bench.names import markdown
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
TRAINING, FITTED = 10_000, 5_000  # images of WhitenNet (chosen: minutes on one core)
RECIPE = cifar10_cpu.Candidate(
    "depths", (cifar10_cpu.Stage(cifar10_cpu.EVIDENTIAL, 3, 0.8),), batch_size=256, clip=1.0
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
        split = torch.split(outputs.features, list(self.widths.values()), dim=1)
        parts = dict(zip(self.widths, split, strict=True))
        chosen = [parts[name] for name in choice.blocks]
        if choice.pooling == "mean":
            named = zip(choice.blocks, chosen, strict=True)
            chosen = [part if name == "pool" else part.chunk(2, 1)[0] for name, part in named]
        return Outputs.of_parts(chosen, outputs.logits)


def choices(
    depths: Iterable[tuple[str, ...]], covariances: Iterable[Covariance]
) -> tuple[Choice, ...]:
    """Every combination; the last block alone has no positions, and a single part no other block."""
    poolings: tuple[Pooling, ...] = ("mean", "mean-std")
    every = starmap(Choice, product(depths, poolings, (True, False), covariances))
    return tuple(
        each
        for each in every
        if each.pooling == "mean" or each.blocks != ("pool",)
        if each.covariance != "block" or len(each.blocks) > 1
    )


NETWORKS: Mapping[str, tuple[Choice, ...]] = {
    "whitennet": choices(
        [("pool",), ("block2",), ("block2", "pool"), ("block1", "block2", "pool")],
        ("full", "tied", "diagonal", "block", "auto"),
    ),
    # 600 images per class don't determine a covariance of 1,280 features each.
    "photos": choices(
        [("pool",), ("stage5",), ("stage5", "pool"), ("stage3", "stage5", "pool")],
        ("tied", "diagonal", "auto"),
    ),
}


def whitennet(seed: int, data: Path | None) -> Computed:
    """A small network trained on CIFAR-10 with the evidential loss."""
    known = datasets.load("cifar10", "train", data, download=False)
    held_out, rest = known.random_split(HELD_OUT, seed)
    train, _ = rest.random_split(TRAINING, seed)
    torch.manual_seed(seed)
    network = WhitenNet(3, 10, features=("block1", "block2", "pool"), pooling="mean-std")
    network.whiten(cifar10_cpu.PREPROCESS(train.images[: cifar10_cpu.WHITENED_ON], torch.float32))
    RECIPE.fit(network, train, stage=0, seed=seed)
    model = Classifier(network, EDLPlus(), preprocess=cifar10_cpu.PREPROCESS)
    return Computed(
        dict(zip(network.depths, network.parts, strict=True)),
        model.collect(train.subset(range(FITTED))),
        model.collect(held_out),
        {name: model.collect(each)[0] for name, each in _corrupted(held_out, seed)},
    )


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
    torch.manual_seed(seed)
    model = Classifier.from_backbone(num_classes=len(PHOTOS), image_size=PIXELS, method="edl+")
    network, head, store = model.network.plain, head_of(model), FeatureCache(None, model)

    def features(images: ImageSet) -> tuple[Tensor, ...]:
        return features_of(model, images.converted(3, PIXELS), store, "photos")

    fitted = features(train)
    fit(head, fitted, max_epochs=30, seed=seed, progress=False)
    return Computed(
        dict(zip(network.depths, network.parts, strict=True)),
        head.collect(fitted),
        head.collect(features(held_out)),
        {name: head.collect(features(each))[0] for name, each in _corrupted(held_out, seed)},
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
    seeds: Annotated[int, typer.Option(min=1, help="Rows that exist are not measured again.")] = 2,
    data: DataRoot = None,
) -> None:
    """Append the figures of every choice for each seed."""
    done = {(row.protocol, row.seed, row.method) for row in results.load(PATH)}
    compute = {"whitennet": whitennet, "photos": photos}[network]
    for seed in range(seeds):
        every = {str(choice or "no density"): choice for choice in (None, *NETWORKS[network])}
        missing = {name: each for name, each in every.items() if (network, seed, name) not in done}
        if not missing:
            continue
        with using_threads(1):
            computed = compute(seed, data)
            for name, choice in missing.items():
                started = time.perf_counter()
                found = measure(computed, choice)
                seconds = time.perf_counter() - started
                fields = {"experiment": EXPERIMENT, "method": name}
                fields |= {"data": "held out", "protocol": network}
                results.append(PATH, results.rows(found, seed=seed, seconds=seconds, **fields))
                typer.echo(f"{name}: {found[-1].value:.4f}")


@app.command()
def show() -> None:
    """Print mean figures over seeds as a Markdown table per network, the largest AUROC first."""
    shown = ["auroc", "brier", "accuracy", "below 0.05"]
    for network, rows in results.frame(results.load(PATH)).groupby("protocol"):
        table = rows.pivot_table("value", "method", "metric")[shown]
        lines = table.sort_values("auroc", ascending=False).map("{:.4f}".format)
        cells = [[str(name), *values] for name, values in lines.iterrows()]
        typer.echo(markdown([str(network), *shown], cells))


def _corrupted(images: ImageSet, seed: int) -> Iterator[tuple[str, ImageSet]]:
    for name in CORRUPTIONS:
        pixels = corrupt(images.images, name, SEVERITY, "cifar10-c", seed)
        yield name, replace(images, pixels=pixels)


def _relabelled(images: ImageSet) -> ImageSet:
    """Labels 0, 1, ... in the order of `PHOTOS`."""
    labels = torch.tensor([PHOTOS.index(label) for label in images.labels.tolist()])
    return replace(images, labels=labels, class_names=None)
