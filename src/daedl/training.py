"""Training: one loop on Fabric, then the density."""

import copy
import math
import pickle
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, ReduceLROnPlateau

from daedl.checkpoint import Checkpoint
from daedl.checks import require_finite, require_images, require_targets
from daedl.classifier import Classifier
from daedl.density import DensityEffect, DensityScorer, DensityWarning
from daedl.distributed import sum_across
from daedl.loaders import Data, as_batches, generators, in_order
from daedl.outputs import Batch, collect


@dataclass(frozen=True)
class Epoch:
    """One epoch: losses are means over samples; without validation data `val_*` is None."""

    train_loss: float
    val_loss: float | None
    val_accuracy: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class History:
    """What `fit` did.

    Attributes:
        epochs: one record for each epoch.
        best_epoch: zero-based epoch of the lowest validation loss, whose weights were kept; the last
            one without validation data.
        stopped_early: whether the validation loss ended training before `max_epochs`.
        density: the density's effect on the validation data, for a method that has one.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    stopped_early: bool
    density: DensityEffect | None = None


@dataclass(frozen=True)
class Plan:
    """The arguments of `fit`, on their way into each process."""

    max_epochs: int
    optimizer: Callable[[Iterable[Tensor]], Optimizer]
    scheduler: Callable[[Optimizer], LRScheduler]
    patience: int
    gradient_clip: float | None
    seed: int
    checkpoint: Path | None
    resume: bool
    progress: bool


def fit(
    model: Classifier,
    train: Data,
    val: Data | None = None,
    *,
    max_epochs: int = 50,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    lr_decay: float = 0.95,
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    patience: int = 10,
    gradient_clip: float | None = None,
    density: Data | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    accelerator: str = "auto",
    devices: int | str = 1,
    strategy: str = "auto",
    precision: Any = "32-true",
    progress: bool = True,
) -> History:
    """Train `model`, put back the weights of its best epoch, then fit its density in one more pass.

    The defaults are the paper's: Adam at 1e-3, times 0.95 after each epoch, batches of 64, early
    stopping on the validation loss. Validation runs in eval mode.

    Arguments:
        train: batches of (images, targets), for instance a DataLoader, or the two tensors.
        val: held-out data of the same kind; without them the last epoch's weights are kept.
        max_epochs: epochs at most.
        batch_size: for tensors; a loader has its own.
        learning_rate, lr_decay: of the default optimiser and schedule.
        optimizer: builds another optimiser from the parameters, e.g. `partial(SGD, lr=0.1)`.
        scheduler: builds another schedule from the optimiser; stepped after each epoch.
        patience: epochs without a lower validation loss after which training stops.
        gradient_clip: largest norm of the gradient.
        density: training data to fit the density to, if `train` augments: it should see images as
            they are. By default `train`.
        seed: epoch t draws its random numbers from (seed, t), so that a resumed run repeats them. The
            random state outside is put back.
        checkpoint: file to write after each epoch, atomically.
        resume: go on from `checkpoint` if it exists; the end is the same as without interruption.
        accelerator, devices, strategy, precision: Fabric's, e.g. devices=2, precision="bf16-mixed".
            Several processes are spawned by default, so that what follows `fit` runs once.
        progress: show progress bars.
    """
    if max_epochs < 1 or patience < 1:
        raise ValueError(
            f"max_epochs is {max_epochs} and patience {patience}; expected both at least 1"
        )
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists() and not resume:
        raise FileExistsError(
            f"checkpoint {path} exists already; expected a new file: pass resume=True to go on from "
            "it, or delete it to start again"
        )
    plan = Plan(
        max_epochs=max_epochs,
        optimizer=optimizer or partial(Adam, lr=learning_rate),
        scheduler=scheduler or partial(ExponentialLR, gamma=lr_decay),
        patience=patience,
        gradient_clip=gradient_clip,
        seed=seed,
        checkpoint=path,
        resume=resume,
        progress=progress,
    )
    train = as_batches(train, batch_size, shuffle=True)
    val = None if val is None else as_batches(val, batch_size, shuffle=False)
    density = train if density is None else as_batches(density, batch_size, shuffle=False)
    build = partial(Fabric, accelerator=accelerator, devices=devices, precision=precision)
    fabric = build(strategy=strategy)
    if strategy == "auto" and fabric.world_size > 1:
        fabric = build(strategy="ddp_spawn")
    model.fitted = None
    with preserved_random_state():
        history = _launch(fabric, _Job(model, plan, train, val, density))
        effect = None if val is None else _effect_of_density(model, val)
    model.eval()
    if effect is not None and (advice := effect.advice()):
        warnings.warn(advice, DensityWarning, stacklevel=2)
    return replace(history, density=effect)


def _effect_of_density(model: Classifier, val: Iterable[Batch]) -> DensityEffect | None:
    """The density's effect on the validation data; None for a method without one."""
    return model.density_effect(in_order(val)) if isinstance(model.fitted, DensityScorer) else None


@dataclass(frozen=True)
class _Job:
    """What a process needs to train: all that `fit` was given."""

    model: Classifier
    plan: Plan
    train: Iterable[Batch]
    val: Iterable[Batch] | None
    density: Iterable[Batch]


def _launch(fabric: Fabric, job: _Job) -> History:
    """Run the job in as many processes as Fabric has; bring back what they made."""
    if fabric.strategy.launcher is None:
        return _train(fabric, job)
    # Pickled here rather than by multiprocessing, which fails on tensors that share memory.
    pickled = pickle.dumps(job)
    model = job.model
    with tempfile.TemporaryDirectory() as folder:
        history: History = pickle.loads(fabric.launch(_train_pickled, pickled, Path(folder)))  # type: ignore[arg-type]
        result = _result(fabric, Path(folder))
        model.fitted = Classifier.load(result, model.network, model.method).fitted
    return history


def _train_pickled(fabric: Fabric, pickled: bytes, folder: Path) -> bytes:
    """In one of several processes: train, and leave the trained model in `folder`."""
    job: _Job = pickle.loads(pickled)
    history = _train(fabric, job)
    job.model.save(_result(fabric, folder))
    return pickle.dumps(history)


def _result(fabric: Fabric, folder: Path) -> Path:
    """Where a process leaves its model: one file each, as some strategies return in every process."""
    return folder / f"{fabric.global_rank}.daedl"


def _train(fabric: Fabric, job: _Job) -> History:
    """Train, then fit the density."""
    share = partial(in_order, rank=fabric.global_rank, world_size=fabric.world_size)
    val = None if job.val is None else share(job.val)
    history = _Run(fabric, job.model, job.plan, job.train, val).go()
    with fabric.autocast():
        job.model.fit_density(share(job.density))
    return history


class _Run:
    """The state of a training run, and the loop over epochs."""

    def __init__(
        self,
        fabric: Fabric,
        model: Classifier,
        plan: Plan,
        train: Iterable[Batch],
        val: Iterable[Batch] | None,
    ) -> None:
        self.fabric, self.model, self.plan, self.val = fabric, model, plan, val
        self.generators = generators(train)
        self.train: Any = train
        if isinstance(train, torch.utils.data.DataLoader):
            self.train = fabric.setup_dataloaders(train)
        optimizer = plan.optimizer(model.network.parameters())
        self.scheduler = plan.scheduler(optimizer)
        self.network, self.optimizer = fabric.setup(model.network, optimizer)
        self.epochs: list[Epoch] = []
        self.best_epoch = -1
        self.best: dict[str, Tensor] = {}
        self.run = {
            "network": [type(model.network).__name__, model.network.arguments],
            "method": [model.method.name, model.method.arguments()],
            "seed": plan.seed,
            "processes": fabric.world_size,
        }

    def go(self) -> History:
        """Train until the last epoch or until the validation loss stops falling."""
        plan = self.plan
        if plan.resume and plan.checkpoint is not None and plan.checkpoint.exists():
            self._restore(Checkpoint.load(plan.checkpoint, self.run))
        self.fabric.barrier()
        with self._bars() as bars:
            while len(self.epochs) < plan.max_epochs and not self._stalled():
                self._one_epoch(len(self.epochs), bars)
                if plan.checkpoint is not None and self.fabric.is_global_zero:
                    self._checkpoint().save(plan.checkpoint)
                self.fabric.barrier()
        self.model.network.load_state_dict(self.best)
        return History(tuple(self.epochs), self.best_epoch, self._stalled())

    def _stalled(self) -> bool:
        return len(self.epochs) - 1 - self.best_epoch >= self.plan.patience

    def _one_epoch(self, epoch: int, bars: "_Bars") -> None:
        started = time.perf_counter()
        _seed(self.plan.seed, epoch, self.fabric.global_rank)
        learning_rate = self.optimizer.param_groups[0]["lr"]
        train_loss = self._train_epoch(epoch, bars)
        val_loss, val_accuracy = self._validate()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(train_loss if val_loss is None else val_loss)
        else:
            self.scheduler.step()
        seconds = time.perf_counter() - started
        self.epochs.append(Epoch(train_loss, val_loss, val_accuracy, learning_rate, seconds))
        lowest = min(
            (e.val_loss for e in self.epochs[:-1] if e.val_loss is not None), default=math.inf
        )
        if val_loss is None or val_loss < lowest:
            self.best_epoch = epoch
            self.best = copy.deepcopy(self.model.network.state_dict())
        bars.epoch_done(self.epochs[-1])

    def _train_epoch(self, epoch: int, bars: "_Bars") -> float:
        """One pass over the training data; returns the mean loss of a sample."""
        method, network = self.model.method, self.network
        network.train()
        dtype = next(network.parameters()).dtype
        num_classes = self.model.network.num_classes
        # Losses, samples, then the samples of each class.
        sums = torch.zeros(2 + num_classes, dtype=torch.float64)
        for number, batch in enumerate(bars.batches(self.train, epoch)):
            images, targets = self.fabric.to_device(tuple(batch))
            require_images(images, self.model.network.input_shape, dtype)
            require_targets(targets, num_classes, len(images))
            self.optimizer.zero_grad()
            loss = method.training_loss(network, images, targets.long(), epoch)
            if not torch.isfinite(loss):
                self._explain(images, f" of epoch {epoch}, batch {number}")
            self.fabric.backward(loss)
            if self.plan.gradient_clip is not None:
                self.fabric.clip_gradients(
                    network, self.optimizer, max_norm=self.plan.gradient_clip
                )
            self.optimizer.step()
            samples = len(images)
            sums[0] += loss.item() * (samples if method.reduction == "mean" else 1)
            sums[1] += samples
            sums[2:] += torch.bincount(targets.cpu(), minlength=num_classes)
        sums = sum_across(sums)
        _require_all_classes(sums[1:], epoch)
        return float(sums[0] / sums[1])

    def _validate(self) -> tuple[float | None, float | None]:
        """Mean loss and accuracy on the validation data, in eval mode."""
        if self.val is None:
            return None, None
        # The plain network: a distributed wrapper would wait for processes that have fewer batches.
        with self.fabric.autocast():
            outputs, targets = collect(self.model.network, self.val)
        losses = self.model.method.loss(outputs, targets.long(), epoch=math.inf)
        right = outputs.logits.argmax(-1) == targets
        sums = sum_across(torch.stack([losses.double().sum(), right.double().sum()]))
        samples = sum_across(torch.tensor([float(len(targets))], dtype=torch.float64))
        loss, accuracy = (sums / samples).tolist()
        if not math.isfinite(loss):
            raise ValueError(
                f"the validation loss is {loss}; expected a finite number: lower the learning rate"
            )
        return loss, accuracy

    def _explain(self, images: Tensor, where: str) -> None:
        """Say which tensor made the loss of a training batch NaN or infinite."""
        with torch.no_grad():
            outputs = self.model.network(images)
        require_finite(outputs.features, "features", where)
        require_finite(outputs.logits, "logits", where)
        raise ValueError(
            f"the loss{where} is NaN or infinite although images, features and logits are finite; "
            "expected a finite loss: lower the learning rate, or look at the method's loss"
        )

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            run=self.run,
            epochs=[asdict(epoch) for epoch in self.epochs],
            best_epoch=self.best_epoch,
            network=self.model.network.state_dict(),
            best=self.best,
            optimizer=self.optimizer.state_dict(),
            scheduler=self.scheduler.state_dict(),
            precision=self.fabric.strategy.precision.state_dict(),
            generators=[generator.get_state() for generator in self.generators],
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.epochs = [Epoch(**record) for record in checkpoint.epochs]
        self.best_epoch, self.best = checkpoint.best_epoch, checkpoint.best
        self.model.network.load_state_dict(checkpoint.network)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.scheduler.load_state_dict(checkpoint.scheduler)
        self.fabric.strategy.precision.load_state_dict(checkpoint.precision)
        for generator, state in zip(self.generators, checkpoint.generators, strict=True):
            generator.set_state(state)

    @contextmanager
    def _bars(self) -> Iterator["_Bars"]:
        if not (self.plan.progress and self.fabric.is_global_zero):
            yield _Bars(None, self.plan.max_epochs, 0)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns) as progress:
            yield _Bars(progress, self.plan.max_epochs, len(self.epochs))


class _Bars:
    """A bar over the epochs and one over the batches of the epoch; nothing without a display."""

    def __init__(self, progress: Progress | None, max_epochs: int, done: int) -> None:
        self.progress = progress
        if progress is not None:
            self.all = progress.add_task("epochs", total=max_epochs, completed=done, note="")
            self.one = progress.add_task("batches", note="")

    def batches(self, train: Iterable[Batch], epoch: int) -> Iterator[Batch]:
        """The batches of an epoch, each moving the bar on."""
        if self.progress is None:
            yield from train
            return
        total = len(train) if isinstance(train, Sized) else None
        self.progress.reset(self.one, total=total, description=f"epoch {epoch}")
        for batch in train:
            yield batch
            self.progress.advance(self.one)

    def epoch_done(self, epoch: Epoch) -> None:
        """Show what the epoch reached."""
        if self.progress is None:
            return
        note = f"loss {epoch.train_loss:.4f}"
        if epoch.val_loss is not None:
            note += f", validation {epoch.val_loss:.4f}, accuracy {epoch.val_accuracy:.2%}"
        self.progress.update(self.all, advance=1, note=note)


def _require_all_classes(counts: Tensor, epoch: int) -> None:
    """Raise after the first epoch if it had no sample, or none of some class; `counts` is (1 + C,)."""
    if counts[0] == 0:
        raise ValueError(
            "the training loader gave no batch; expected at least one (images, labels)"
        )
    missing = (counts[1:] == 0).nonzero().flatten().tolist()
    if missing and epoch == 0:
        raise ValueError(
            f"no training sample of class {', '.join(map(str, missing))} among {int(counts[0])}; "
            "expected every class of the network: add samples, or build the network with fewer "
            "classes and renumber the labels"
        )


def _seed(seed: int, epoch: int, rank: int) -> None:
    """Draw this epoch's random numbers from its own stream."""
    stream = int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0])
    random.seed(stream)
    np.random.seed(stream)  # noqa: NPY002 (users' datasets may draw from the global generator)
    torch.manual_seed(stream)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Put the global random states of Python, NumPy and PyTorch back at the end."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
