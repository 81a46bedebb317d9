"""The search for the `cpu` protocol on CIFAR-10, by figures on held-out training images.

    python -m daedl_bench study cifar10_cpu --only "2 epochs"

Trains every candidate whose name contains `--only` and that has no rows yet, with one thread, and appends
its rows to benchmarks/results/cifar10_cpu_choice.jsonl: loss and accuracy on the 2,500 held-out images,
epochs, and seconds. Test images and OOD images are not read. A candidate whose run is interrupted continues
after its last complete epoch. Rows of the first candidates also have CPU seconds, and images per CPU second.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from daedl import Classifier, fit, methods
from daedl.cli.common import using_threads
from daedl.data import ImageSet, Preprocess, augmentation
from daedl.evaluate import Measured
from daedl.networks import Network, WhitenNet
from daedl.training import Epoch, History, OneCycle, sgd
from daedl_bench import datasets, results
from daedl_bench.options import RESULTS, DataRoot
from daedl_bench.spec import digest

PATH = RESULTS / "cifar10_cpu_choice.jsonl"
app = typer.Typer()
EXPERIMENT = "cifar10-cpu-choice"
SEED = 100  # no experiment uses it
HELD_OUT = 2500  # images, as in cifar10-paper
# Of each channel, as in cifar10-paper.
PREPROCESS = Preprocess(3, 32, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
WHITENED_ON = 5000  # training images that the whitening filters are computed from, as in airbench
# What all candidates share, as their digests name it: `sgd` and the augmentations have these as defaults.
SHARED = {"momentum": 0.9, "decay": 5e-4, "bias_rate": 1.0, "shift": 2, "cutout": 0}
PRECISION = "bf16-mixed"


@dataclass(frozen=True)
class Stage:
    """Epochs with one loss, and a one-cycle schedule of its own.

    Attributes:
        method: name and settings of the method whose loss is trained.
        epochs: passes over the training images.
        rate: peak learning rate of the convolutions.
        rise: share of the steps in which the rate rises.
        start, end: rates of the first and the last step, as shares of the peak.
    """

    method: dict[str, Any]
    epochs: int
    rate: float = 0.4
    rise: float = 0.25
    start: float = 0.1
    end: float = 1e-4


@dataclass(frozen=True)
class Candidate:
    """A recipe.

    Attributes:
        stages: trainings in a row.
        network: arguments of the network that differ from its defaults.
        max_pooling: whether the features are maxima of the last block's maps instead of means.
        whiten: whether the whitening filters are computed from training images. False, whose rows are
            older, can't be measured again: `fit` computes them.
        batch_size: images in a step.
        dense_rate: learning rate of the dense layer, as a multiple of the convolutions'.
        clip: largest norm of the gradient, or None.
    """

    name: str
    stages: tuple[Stage, ...]
    network: dict[str, Any] = field(default_factory=dict)
    max_pooling: bool = False
    whiten: bool = True
    batch_size: int = 512
    dense_rate: float = 1.0
    clip: float | None = None

    @property
    def key(self) -> str:
        """A digest of everything but the name."""
        return digest({**asdict(self), **SHARED, "precision": PRECISION, "name": ""})

    def fit(
        self, network: Network, train: ImageSet, *held_out: ImageSet, stage: int, **options: Any
    ) -> History:
        """Train a stage."""
        chosen, settings = self.stages[stage], dict(self.stages[stage].method)
        method = methods.build(settings.pop("name"), **settings)
        return fit(
            Classifier(network, method, preprocess=PREPROCESS),
            train.batches(
                self.batch_size,
                shuffle=True,
                seed=options["seed"],
                augment=augmentation(("flip", "shift")),
                drop_last=True,
            ),
            *held_out,
            max_epochs=chosen.epochs,
            patience=chosen.epochs,
            optimizer=sgd(chosen.rate, factors={2: self.dense_rate}),
            schedule=OneCycle(chosen.rise, chosen.start, chosen.end),
            gradient_clip=self.clip,
            accelerator="cpu",
            precision=PRECISION,
            progress=False,
            **options,
        )


def network_of(candidate: Candidate, train: ImageSet) -> Network:
    """The network with its initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = WhitenNet(3, 10, features="last", **candidate.network)
    if candidate.max_pooling:
        network.extractor.pool = nn.Sequential(nn.MaxPool2d(3), nn.Flatten())
    if candidate.whiten:
        network.whiten(PREPROCESS(train.images[:WHITENED_ON], torch.float32))
    return network


def train(candidate: Candidate, data: Path | None) -> Iterator[Measured]:
    """Train `candidate`; its figures on the held-out images."""
    known = datasets.load("cifar10", "train", data, download=False)
    val, rest = known.random_split(HELD_OUT, SEED)
    network = network_of(candidate, rest)
    epochs: list[Epoch] = []
    for stage in range(len(candidate.stages)):
        history = candidate.fit(
            network,
            rest,
            val,
            stage=stage,
            seed=SEED + stage,
            checkpoint=_checkpoint(candidate, stage),
            resume=True,
        )
        epochs += history.epochs
        for epoch in history.epochs:
            typer.echo(f"  {epoch}, {epoch.seconds:.0f} s")
    last = epochs[-1]
    yield Measured("training", "labels", "accuracy", last.val_accuracy or 0.0)
    yield Measured("training", "loss", "validation", last.val_loss or 0.0)
    yield Measured("training", "loss", "training", last.train_loss)
    yield Measured("cost", "training", "epochs", len(epochs))


def _checkpoint(candidate: Candidate, stage: int) -> Path:
    """Where a stage continues after an interruption; removed once the rows are written."""
    return PATH.with_name(f".{candidate.key}.{stage}.ckpt")


# Evidential losses are averaged over a batch, so that one rate serves any size of it.
EVIDENTIAL = {"name": "edl+", "reduction": "mean"}
CROSS_ENTROPY = {"name": "softmax"}


def candidates() -> tuple[Candidate, ...]:
    """What is compared; those without rows were not run yet."""
    # With max pooling, one rate for all layers and no limit on the gradient the evidential loss is
    # infinite after 18 steps. With average pooling limits of 1 and 4 give equal figures.
    base = Candidate("2 epochs", (Stage(EVIDENTIAL, 2),), clip=1.0)
    faster = replace(base, name="2 epochs, rate 0.8", stages=(Stage(EVIDENTIAL, 2, 0.8),))
    smaller = replace(faster, name="2 epochs, rate 0.8, batch 256", batch_size=256)
    full = replace(
        base,
        name="8 epochs, 64-256-256, rate 0.8, batch 256",
        stages=(Stage(EVIDENTIAL, 8, 0.8),),
        network={"hidden": (64, 256, 256)},
        batch_size=256,
    )
    pooled = Candidate("3 epochs, cross-entropy, max pooling", (Stage(CROSS_ENTROPY, 3),))
    return (
        replace(pooled, max_pooling=True),
        base,
        replace(base, name="2 epochs, cross-entropy", stages=(Stage(CROSS_ENTROPY, 2),)),
        replace(
            base, name="2 epochs, max pooling, dense 1/16", max_pooling=True, dense_rate=1 / 16
        ),
        replace(
            base,
            name="1 epoch of cross-entropy, 1 of the evidential loss",
            stages=(
                Stage(CROSS_ENTROPY, 1, rise=0.5, end=2 / 3),
                Stage(EVIDENTIAL, 1, rate=0.8 / 3, rise=0.01, start=1.0),
            ),
        ),
        faster,
        replace(base, name="2 epochs, rate 1.6", stages=(Stage(EVIDENTIAL, 2, 1.6),)),
        smaller,
        full,
        replace(faster, name="2 epochs, rate 0.8, clip 4", clip=4.0),
        replace(smaller, name=f"{smaller.name}, no whitening", whiten=False),
        replace(
            smaller,
            name=f"{smaller.name}, cross-entropy",
            stages=(Stage(CROSS_ENTROPY, 2, 0.8),),
        ),
        replace(
            smaller,
            name=f"{smaller.name}, spectral norm",
            stages=(Stage({**EVIDENTIAL, "spectral": {}}, 2, 0.8),),
        ),
    )


@app.command()
def search(
    only: Annotated[str, typer.Option(help="Part of the candidates' names.")] = "",
    data: DataRoot = None,
) -> None:
    """Train every candidate without rows, and append its figures."""
    done = {row.spec for row in results.load(PATH)}
    for candidate in candidates():
        if candidate.key in done or only not in candidate.name:
            continue
        typer.echo(candidate.name)
        started = time.perf_counter()
        with using_threads(1):
            found = list(train(candidate, data))
        rows = results.rows(
            found,
            experiment=EXPERIMENT,
            method="+".join(stage.method["name"] for stage in candidate.stages),
            data="held out",
            seed=SEED,
            seconds=time.perf_counter() - started,
            spec=candidate.key,
            protocol=candidate.name,
        )
        results.append(PATH, rows)
        for stage in range(len(candidate.stages)):
            _checkpoint(candidate, stage).unlink(missing_ok=True)
        typer.echo(f"{candidate.name} { {each.metric: round(each.value, 4) for each in found} }")
