"""The search for the `cpu` protocol on CIFAR-10, by figures on held-out training images.

    python -m daedl_bench study cifar10_cpu --only "2 epochs"

Trains every candidate whose name contains `--only` and that has no rows yet, with one thread, and appends
its rows to benchmarks/results/cifar10_cpu_choice.jsonl: loss and accuracy on the 2,500 held-out images,
epochs, seconds, CPU seconds, and images per CPU second in the fastest training step. Test images and OOD
images are not read. A candidate whose run is interrupted continues after its last complete epoch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from daedl import Classifier, fit, methods
from daedl.cli.common import using_threads
from daedl.data import Augmentation, Batch, Batches, ImageSet, Preprocess
from daedl.data.augment import Chain, Crop, Flip
from daedl.data.batches import EpochOrder
from daedl.evaluate import Measured
from daedl.networks import Network, WhitenNet
from daedl.training import Epoch, OneCycle, sgd
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
        momentum: Nesterov's.
        decay: weight decay of convolutions and dense layers, not of BatchNorm and biases.
        dense_rate: learning rate of the dense layer, as a multiple of the convolutions'.
        bias_rate: the same for BatchNorm and biases.
        shift: pixels that an image is moved by at most, reflected at the border.
        cutout: side of the square that is blanked out; 0 for none.
        clip: largest norm of the gradient, or None.
        precision: as `fit` takes it.
    """

    name: str
    stages: tuple[Stage, ...]
    network: dict[str, Any] = field(default_factory=dict)
    max_pooling: bool = False
    whiten: bool = True
    batch_size: int = 512
    momentum: float = 0.9
    decay: float = 5e-4
    dense_rate: float = 1.0
    bias_rate: float = 1.0
    shift: int = 2
    cutout: int = 0
    clip: float | None = None
    precision: str = "bf16-mixed"

    @property
    def key(self) -> str:
        """A digest of everything but the name."""
        return digest({**asdict(self), "name": ""})


@dataclass(frozen=True)
class Cutout:
    """Set a square with this side to the mean colour of the image, wholly inside it."""

    side: int

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        number, _, height, width = images.shape
        top = torch.randint(height - self.side + 1, (number, 1), generator=generator)
        left = torch.randint(width - self.side + 1, (number, 1), generator=generator)
        rows_, columns = torch.arange(height), torch.arange(width)
        inside = ((rows_ >= top) & (rows_ < top + self.side)).unsqueeze(2) & (
            (columns >= left) & (columns < left + self.side)
        ).unsqueeze(1)
        return torch.where(inside.unsqueeze(1), images.mean((2, 3), keepdim=True), images)


class Timed:
    """Batches, with the CPU seconds that each takes: other processes may share the core."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.seconds: list[float] = []

    @property
    def sampler(self) -> EpochOrder:
        """`daedl.fit` sets its epoch."""
        return self.batches.sampler

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        before = time.process_time()
        for number, batch in enumerate(self.batches):
            yield batch
            now = time.process_time()
            if number:  # the first step of an epoch includes no augmentation
                self.seconds.append(now - before)
            before = now


def augmentation(candidate: Candidate) -> Augmentation:
    """Flip, shift, and cutout if there is one."""
    steps: tuple[Augmentation, ...] = (Flip(), Crop(candidate.shift, mode="reflect"))
    return Chain((*steps, Cutout(candidate.cutout)) if candidate.cutout else steps)


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


def train(
    candidate: Candidate, data: Path | None, show: Callable[[str], None]
) -> Iterator[Measured]:
    """Train `candidate`; its figures on the held-out images."""
    val, known = datasets.load("cifar10", "train", data, download=False).random_split(
        HELD_OUT, SEED
    )
    batches = known.batches(
        candidate.batch_size,
        shuffle=True,
        seed=SEED,
        augment=augmentation(candidate),
        drop_last=True,
    )
    timed = Timed(batches)
    network = network_of(candidate, known)
    epochs: list[Epoch] = []
    factors = {2: candidate.dense_rate, 1: candidate.bias_rate}
    for number, stage in enumerate(candidate.stages):
        settings = dict(stage.method)
        method = methods.build(settings.pop("name"), **settings)
        model = Classifier(network, method, preprocess=PREPROCESS)
        history = fit(
            model,
            timed,
            val.batches(500),
            max_epochs=stage.epochs,
            patience=stage.epochs,
            optimizer=sgd(stage.rate, candidate.momentum, candidate.decay, factors),
            schedule=OneCycle(stage.rise, stage.start, stage.end),
            gradient_clip=candidate.clip,
            seed=SEED + number,
            accelerator="cpu",
            precision=candidate.precision,
            checkpoint=_checkpoint(candidate, number),
            resume=True,
            progress=False,
        )
        epochs += history.epochs
        for epoch in history.epochs:
            show(f"  {epoch}, {epoch.seconds:.0f} s")
    yield from _measured(epochs)
    fastest = candidate.batch_size / min(timed.seconds)
    yield Measured("cost", "training", "images per second", fastest)
    yield Measured("cost", "training", "CPU seconds", sum(timed.seconds))


def _checkpoint(candidate: Candidate, stage: int) -> Path:
    """Where a stage continues after an interruption; removed once the rows are written."""
    return PATH.with_name(f".{candidate.key}.{stage}.ckpt")


def _measured(epochs: Sequence[Epoch]) -> Iterator[Measured]:
    last = epochs[-1]
    yield Measured("training", "labels", "accuracy", last.val_accuracy or 0.0)
    yield Measured("training", "loss", "validation", last.val_loss or 0.0)
    yield Measured("training", "loss", "training", last.train_loss)
    yield Measured("cost", "training", "epochs", len(epochs))


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
    return (
        Candidate(
            "3 epochs, cross-entropy, max pooling", (Stage(CROSS_ENTROPY, 3),), max_pooling=True
        ),
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
            found = list(train(candidate, data, typer.echo))
        _append(candidate, found, time.perf_counter() - started)
        figures = {each.metric: round(each.value, 4) for each in found}
        typer.echo(f"{candidate.name} {figures}")


def _append(candidate: Candidate, found: Sequence[Measured], seconds: float) -> None:
    rows = results.rows(
        found,
        experiment=EXPERIMENT,
        method="+".join(stage.method["name"] for stage in candidate.stages),
        data="held out",
        seed=SEED,
        seconds=seconds,
        spec=candidate.key,
        protocol=candidate.name,
    )
    results.append(PATH, rows)
    for stage in range(len(candidate.stages)):
        _checkpoint(candidate, stage).unlink(missing_ok=True)
