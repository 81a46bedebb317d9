"""Training a classifier: `fit`, and the processes that it runs in."""

import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR

from daedl.checks import (
    require_above_zero,
    require_batch,
    require_targets,
    require_weights,
    require_whole,
)
from daedl.classifier import Classifier
from daedl.data.batches import Batch
from daedl.data.loaders import Data, in_order, require_repeatable, shuffled_share
from daedl.density import DensityEffect, DensityScorer, DensityWarning
from daedl.distributed import sum_across
from daedl.networks import lay_out
from daedl.storage import expanded, require_writable
from daedl.training.callbacks import require_callbacks
from daedl.training.loop import History, Plan, train_all
from daedl.training.randomness import preserved_random_state, seed_epoch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Schedule = Literal["exponential", "one-cycle"]


def fit(
    model: Classifier,
    train: Data,
    val: Data | None = None,
    *,
    max_epochs: int = 50,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    lr_decay: float = 0.95,
    schedule: Schedule = "exponential",
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    patience: int = 10,
    gradient_clip: float | None = None,
    class_weights: Literal["balanced"] | Sequence[float] | Tensor | None = None,
    fit_data: Data | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    resume_key: Mapping[str, Any] | None = None,
    accelerator: str = "auto",
    devices: int | str = 1,
    strategy: str = "auto",
    precision: Any = "32-true",
    callbacks: Sequence[Any] = (),
    loggers: Any = None,
    progress: bool = True,
) -> History:
    """Trains `model`, restores its best epoch, then fits what the method needs after training.

    The defaults are the paper's: Adam at 1e-3, times 0.95 after each epoch, batches of 64, early
    stopping on the validation loss. Validation runs in eval mode. Inputs go through `model.prepare`.

    Arguments:
        train: a DataLoader or another iterable of (inputs, targets) batches; a Dataset; two arrays; an
            ImageSet; or the path of a folder with one subfolder of images per class. A third entry of a
            batch, or a third array, are sample weights.
        val: held-out data of the same kind; without them the last epoch's weights are kept.
        max_epochs: maximal number of epochs.
        batch_size: for data without batches of their own.
        learning_rate, lr_decay: of the default optimiser and schedule.
        schedule: "exponential" multiplies the rate by `lr_decay` after each epoch; "one-cycle" takes
            it up to `learning_rate` and down to zero over `max_epochs`, batch by batch, and Adam's
            first beta the other way, as PyTorch's OneCycleLR does by default: it needs fewer epochs
            (Smith and Topin, 2018).
        optimizer: builds another optimiser from the parameters, e.g. `partial(SGD, lr=0.1)`.
        scheduler: builds another schedule from the optimiser; stepped after each epoch, or after each
            batch if it is a OneCycleLR or CyclicLR.
        patience: epochs without a lower validation loss after which training stops.
        gradient_clip: largest norm of the gradient.
        class_weights: one factor of the loss per class, for training and validation; "balanced" gives every
            class the same total weight, N / (C N_c).
        fit_data: training data for the fit after training, if `train` augments: a density should see
            images as they are. By default `train`.
        seed: epoch t draws its random numbers from (seed, t), so that a resumed run repeats them. The
            random state outside is put back.
        checkpoint: file to write after each epoch, atomically.
        resume: go on from `checkpoint` if it exists; the end is the same as without interruption.
        resume_key: what else must be the same to resume, such as a digest of the data; JSON-able.
        accelerator, devices, strategy, precision: Fabric's, e.g. devices=2, precision="bf16-mixed".
            Several processes are spawned by default, so that what follows `fit` runs once.
        callbacks: objects with some of the methods of `daedl.training.Callback`.
        loggers: one or several of Fabric's loggers, such as `CSVLogger`, `TensorBoardLogger` or any other of
            that interface; they get the losses, the accuracy and the learning rate of each epoch.
        progress: show progress bars.
    """
    plan = Plan(
        max_epochs=max_epochs,
        optimizer=optimizer or partial(Adam, lr=learning_rate),
        scheduler=(
            partial(_as_given, scheduler)
            if scheduler
            else _schedule(schedule, learning_rate, lr_decay)
        ),
        patience=patience,
        gradient_clip=gradient_clip,
        seed=seed,
        checkpoint=None if checkpoint is None else expanded(checkpoint),
        resume=resume,
        progress=progress,
        resume_key=resume_key or {},
        callbacks=tuple(callbacks),
    )
    train = model.batches(train, batch_size, shuffle=True)
    require_repeatable(train)
    val = None if val is None else model.batches(val, batch_size)
    fit_data = train if fit_data is None else model.batches(fit_data, batch_size)
    require_above_zero("learning_rate", learning_rate, "0.001")
    require_callbacks(plan.callbacks)
    if class_weights is not None:
        plan = replace(plan, class_weights=_class_weights(class_weights, model, train))
    _require_sense(plan, train)
    if val is None and model.method.needs_fit and model.method.fit_split == "validation":
        raise ValueError(
            f"method {model.method.name!r} is fitted to validation data, and none were given; expected "
            "held-out data: pass val=..., for instance a tenth of the training data"
        )
    from lightning_fabric import Fabric  # noqa: PLC0415 (takes as long as torch to import)

    build = partial(
        Fabric, accelerator=accelerator, devices=devices, precision=precision, loggers=loggers
    )
    fabric = build(strategy=strategy)
    if strategy == "auto" and fabric.world_size > 1:
        fabric = build(strategy="ddp_spawn")
    was_training = model.training
    try:
        with preserved_random_state():
            history = _launch(fabric, _Job(model, plan, train, val, fit_data))
            effect = None if val is None else _effect_of_density(model, val)
    except BaseException:
        model.train(was_training)
        raise
    model.eval()
    if effect is not None and (advice := effect.advice()):
        warnings.warn(advice, DensityWarning, stacklevel=2)
    return replace(history, density_effect=effect)


def _schedule(
    name: Schedule, learning_rate: float, lr_decay: float
) -> Callable[[Optimizer, int, int | None], LRScheduler]:
    """Builds the schedule of this name from the optimiser and the numbers of epochs and batches."""
    match name:
        case "exponential":
            return partial(_exponential, lr_decay)
        case "one-cycle":
            return partial(_one_cycle, learning_rate)
    raise ValueError(f"schedule is {name!r}; expected {' or '.join(get_args(Schedule))}")


def _exponential(
    lr_decay: float, optimizer: Optimizer, _epochs: int, _batches: int | None
) -> LRScheduler:
    return ExponentialLR(optimizer, lr_decay)


def _one_cycle(
    learning_rate: float, optimizer: Optimizer, max_epochs: int, batches: int | None
) -> LRScheduler:
    if batches is None:
        raise TypeError(
            "the training data don't say how many batches they have; expected a length for "
            "schedule='one-cycle': pass a DataLoader or a list of batches"
        )
    return OneCycleLR(optimizer, learning_rate, total_steps=max_epochs * batches)


def _as_given(
    scheduler: Callable[[Optimizer], LRScheduler],
    optimizer: Optimizer,
    _epochs: int,
    _batches: int | None,
) -> LRScheduler:
    return scheduler(optimizer)


def _require_sense(plan: Plan, train: Iterable[Batch]) -> None:
    """Raise for what would fail, or be lost, only after training."""
    require_whole("max_epochs", plan.max_epochs, 1, "50 as published")
    require_whole("patience", plan.patience, 1, "10")
    require_whole("seed", plan.seed, 0, "0")
    if (
        plan.gradient_clip is not None
    ):  # a norm of 0 or below would not let gradients point downhill
        require_above_zero("gradient_clip", plan.gradient_clip, "1.0, or None for no limit")
    if plan.checkpoint is None:
        if plan.resume:
            raise ValueError("resume=True without a checkpoint; expected checkpoint='run.ckpt' too")
        return
    if plan.checkpoint.exists() and not plan.resume:
        raise FileExistsError(
            f"checkpoint {plan.checkpoint} exists already; expected a new file: pass resume=True to go "
            "on from it, or delete it to start again"
        )
    require_writable(plan.checkpoint.parent)
    if getattr(train, "persistent_workers", False):
        raise ValueError(
            "the training loader has persistent_workers=True, whose random numbers a checkpoint can't "
            "hold; expected persistent_workers=False, so that a resumed run repeats them"
        )


def _effect_of_density(model: Classifier, val: Iterable[Batch]) -> DensityEffect | None:
    """The density's effect on the validation data; None for a method without one."""
    return model.density_effect(val) if isinstance(model.fitted, DensityScorer) else None


@dataclass(frozen=True)
class _Job:
    """What a process needs to train: all that `fit` was given."""

    model: Classifier
    plan: Plan
    train: Iterable[Batch]
    val: Iterable[Batch] | None
    fit_data: Iterable[Batch]


def _launch(fabric: "Fabric", job: _Job) -> History:
    """Run the job in as many processes as Fabric has; bring back what they made."""
    if fabric.strategy.launcher is None:
        return _train(fabric, job)
    # Pickled here rather than by multiprocessing, which fails on tensors that share memory.
    pickled = pickle.dumps(job)
    model = job.model
    with tempfile.TemporaryDirectory() as folder:
        history: History = pickle.loads(fabric.launch(_train_pickled, pickled, Path(folder)))  # type: ignore[arg-type]
        result = _result(fabric, Path(folder))
        made = Classifier.load(result, model.network, model.method)
        model.fitted, model.thresholds, model.revisions = made.fitted, None, made.revisions
    return history


def _train_pickled(fabric: "Fabric", pickled: bytes, folder: Path) -> bytes:
    """In one of several processes: train, and leave the trained model in `folder`."""
    job: _Job = pickle.loads(pickled)
    history = _train(fabric, job)
    job.model.save(_result(fabric, folder))
    return pickle.dumps(history)


def _result(fabric: "Fabric", folder: Path) -> Path:
    """Where a process leaves its model: one file each, as some strategies return in every process."""
    return folder / f"{fabric.global_rank}.daedl"


def _train(fabric: "Fabric", job: _Job) -> History:
    """Train, then fit the density."""
    rank, world_size, plan = fabric.global_rank, fabric.world_size, job.plan
    train = shuffled_share(job.train, rank, world_size, plan.seed)
    val = None if job.val is None else in_order(job.val, rank, world_size)
    fit_data = in_order(job.fit_data, rank, world_size)
    model = job.model
    if model.method.needs_class_counts:
        # A sampler of the user's own may draw random numbers: here too those of `seed`.
        seed_epoch(plan.seed, plan.max_epochs + 1, rank)
        counted = in_order(job.train, rank, world_size)
        model.method.set_class_counts(
            model.network, _class_counts(counted, model.network.num_classes)
        )
    on_cpu = fabric.device.type == "cpu"
    if on_cpu:
        lay_out(model.network)
    history = train_all(fabric, model, plan, train, val)
    for logger in fabric.loggers:
        logger.finalize("success")
    if on_cpu:  # as it comes back from a file, so that both predict the same to the last bit
        lay_out(model.network, torch.contiguous_format)
    # A dataset may draw random numbers for the density too: the same after any interruption.
    seed_epoch(plan.seed, plan.max_epochs, rank)
    if model.method.fit_split == "training":
        model.fit_post_hoc(fit_data)
    elif val is not None:
        model.fit_post_hoc(val)
    return history


def _class_weights(
    wanted: str | Sequence[float] | Tensor, model: Classifier, train: Iterable[Batch]
) -> Tensor:
    """Returns one weight per class (C,)."""
    number = model.network.num_classes
    if isinstance(wanted, str):
        if wanted != "balanced":
            raise ValueError(
                f"class_weights is {wanted!r}; expected 'balanced', or one number per class"
            )
        counts = _class_counts(in_order(train), number)
        return counts.sum() / (number * counts.clamp_min(1)).float()
    weights = torch.as_tensor(wanted, dtype=torch.float32)
    require_weights(weights, number, " of the classes")
    return weights


def _class_counts(batches: Iterable[Batch], num_classes: int) -> Tensor:
    """Training samples of each class (C,), of all processes."""
    counts = torch.zeros(num_classes, dtype=torch.long)
    for number, batch in enumerate(batches):
        where = f" of batch {number} of the training data"
        inputs, targets, _ = require_batch(batch, where)
        require_targets(targets, num_classes, len(inputs), where)
        counts += torch.bincount(targets.long().cpu(), minlength=num_classes)
    return sum_across(counts)
