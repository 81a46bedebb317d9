"""Trains a classifier, in one or several processes."""

import os
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR

from daedl.checks import (
    require_above_zero,
    require_batch,
    require_weights,
)
from daedl.classifier import Classifier
from daedl.data.batches import Batch
from daedl.data.loaders import Data, in_order, require_repeatable, shuffled_share
from daedl.density import DensityScorer, DensityWarning
from daedl.model import Model
from daedl.networks import Network, lay_out
from daedl.storage import expand_user
from daedl.training.callbacks import require_callbacks
from daedl.training.chance import ChanceWarning, chance_advice
from daedl.training.history import History
from daedl.training.loop import train_all
from daedl.training.optimizers import OneCycle
from daedl.training.plan import Plan
from daedl.training.randomness import preserved_random_state, seed_epoch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Schedule = Literal["exponential", "one-cycle"]
INITIALIZED_ON = 5000  # training inputs for `Network.initialize_from`, as in airbench


def fit(
    model: Model[Any],
    train: Data,
    val: Data | None = None,
    *,
    max_epochs: int = 50,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    lr_decay: float = 0.95,
    schedule: Schedule | OneCycle = "exponential",
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
    num_nodes: int = 1,
    strategy: str = "auto",
    precision: Any = "32-true",
    callbacks: Sequence[Any] = (),
    loggers: Any = None,
    progress: bool = True,
) -> History:
    """Trains `model`, restores the weights of the best epoch, then runs the method's post-hoc fit.

    The defaults are the paper's: Adam with learning rate 1e-3, multiplied by 0.95 after each epoch, batches
    of 64, early stopping on the validation loss. Validation runs in eval mode. `model.prepare` converts
    the inputs.

    Arguments:
        train: a DataLoader or another iterable of (inputs, targets) batches, or of mappings with `labels`; a
            Dataset; two arrays; an ImageSet; or the path of a folder with one subfolder of images per class.
            Inputs are a tensor, or a tuple or mapping of tensors. A third entry of a batch, an entry
            `weights`, or a third array, contains sample weights.
        val: held-out data in one of these forms; without them the weights of the last epoch are kept.
        max_epochs: maximum number of epochs.
        batch_size: for data without batches.
        learning_rate, lr_decay: settings of the default optimiser and schedule.
        schedule: "exponential" multiplies the rate by `lr_decay` after each epoch; "one-cycle" increases
            it to `learning_rate` and decreases it to zero over `max_epochs`, with a step per batch, and
            varies Adam's first beta inversely, which are the defaults of PyTorch's OneCycleLR. It needs
            fewer epochs (Smith and Topin, 2018). `daedl.training.OneCycle` has other shapes, and a rate
            per group of parameters.
        optimizer: builds another optimiser from the parameters, e.g. `partial(AdamW, lr=0.01)` or
            `daedl.training.sgd(0.1)`.
        scheduler: builds another schedule from the optimiser; stepped after each epoch, or after each
            batch if it is a OneCycleLR or CyclicLR.
        patience: epochs without a lower validation loss after which training stops.
        gradient_clip: largest gradient norm.
        class_weights: one loss weight per class, for training and validation; "balanced" gives every
            class the same total weight, N / (C N_c).
        fit_data: training data for the post-hoc fit, by default `train`. Pass data without augmentation if
            `train` is augmented.
        seed: epoch t draws its random numbers from (seed, t), so that a resumed run repeats them. The
            global random states are restored afterwards.
        checkpoint: file to write after each epoch, atomically.
        resume: continue from `checkpoint` if it exists; the result equals that of an uninterrupted run.
        resume_key: further values that must match to resume, such as a digest of the data; JSON-able.
        accelerator, devices, num_nodes, strategy, precision: Fabric's, e.g. devices=2,
            precision="bf16-mixed". Several processes are spawned by default, so that the code after `fit`
            runs once. Under torchrun, its processes are used, and each returns with the trained model.
        callbacks: objects with some of the methods of `daedl.training.Callback`.
        loggers: one or several loggers with Fabric's interface, such as `CSVLogger` or `TensorBoardLogger`;
            they receive the losses, the accuracy and the learning rate of each epoch.
        progress: whether to show progress bars.
    """
    plan = Plan(
        max_epochs=max_epochs,
        optimizer=optimizer or partial(Adam, lr=learning_rate),
        scheduler=partial(_build_scheduler, scheduler or schedule, learning_rate, lr_decay),
        patience=patience,
        gradient_clip=gradient_clip,
        seed=seed,
        checkpoint=None if checkpoint is None else expand_user(checkpoint),
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
    if not isinstance(schedule, OneCycle) and schedule not in get_args(Schedule):
        raise ValueError(f"schedule is {schedule!r}; expected {' or '.join(get_args(Schedule))}")
    if class_weights is not None:
        plan = replace(plan, class_weights=_class_weights(class_weights, model, train))
    plan.validate(train)
    if val is None and model.method.needs_fit and model.method.fit_split == "validation":
        raise ValueError(
            f"method {model.method.name!r} is fitted to validation data, but val is None; expected "
            "held-out data: pass val=..., for instance a tenth of the training data"
        )
    from lightning_fabric import Fabric  # noqa: PLC0415 (importing it takes as long as torch)

    if dist.is_torchelastic_launched():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        devices, num_nodes = local, int(os.environ["WORLD_SIZE"]) // local
    build = partial(
        Fabric,
        accelerator=accelerator,
        devices=devices,
        num_nodes=num_nodes,
        precision=precision,
        loggers=loggers,
    )
    fabric = build(strategy=strategy)
    if strategy == "auto" and fabric.world_size > 1 and not _is_launched(fabric):
        fabric = build(strategy="ddp_spawn")
    if optimizer is None and fabric.device.type == "cpu":
        # One operation per step instead of eight per parameter. Other devices keep PyTorch's choice, because
        # a fused optimiser can't clip gradients in mixed half precision.
        plan = replace(plan, optimizer=partial(Adam, lr=learning_rate, fused=True))
    was_training = model.training
    try:
        with preserved_random_state(), model.network.remembering():
            task = partial(_train, model, plan, train, val, fit_data)
            history = _launch(fabric, model, task)
            has_density = isinstance(model.fitted, DensityScorer)
            effect = None
            if isinstance(model, Classifier) and has_density and val is not None:
                effect = model.density_effect(val)
    except BaseException:
        model.train(was_training)
        raise
    model.eval()
    if effect is not None and (advice := effect.advice()):
        warnings.warn(advice, DensityWarning, stacklevel=2)
    best = history.epochs[history.best_epoch]
    accuracy, level = best.val_accuracy, best.chance_level
    if accuracy is not None and level is not None and accuracy <= level:
        warnings.warn(chance_advice(accuracy, level), ChanceWarning, stacklevel=2)
    return replace(history, density_effect=effect)


def _build_scheduler(
    schedule: Schedule | OneCycle | Callable[[Optimizer], LRScheduler],
    learning_rate: float,
    lr_decay: float,
    optimizer: Optimizer,
    max_epochs: int,
    batches: int | None,
) -> LRScheduler:
    """Builds a schedule by name, or calls the user's function; `batches` is the number per epoch."""
    if callable(schedule):
        return schedule(optimizer)
    if schedule == "exponential":
        return ExponentialLR(optimizer, lr_decay)
    if batches is None:
        raise TypeError(
            "the training data have no length; expected a length for a one-cycle schedule: pass a "
            "DataLoader or a list of batches"
        )
    if isinstance(schedule, OneCycle):
        return schedule.build(optimizer, max_epochs * batches)
    return OneCycleLR(optimizer, learning_rate, total_steps=max_epochs * batches)


def _launch(fabric: "Fabric", model: Model[Any], task: Callable[["Fabric"], History]) -> History:
    """Runs `task`, which trains `model`, in Fabric's processes, and copies the result into `model`."""
    if fabric.strategy.launcher is None:
        return task(fabric)
    if _is_launched(fabric):
        # The process group stays open: torchrun's store can't open it again for the next fit.
        return fabric.launch(task)  # type: ignore[no-any-return]
    # Pickled here, because multiprocessing fails on tensors that share memory.
    pickled = pickle.dumps((model, task))
    with tempfile.TemporaryDirectory() as folder:
        history: History = pickle.loads(fabric.launch(_run_pickled, pickled, Path(folder)))  # type: ignore[arg-type]
        path = _model_path(fabric, Path(folder))
        trained = type(model).load(path, model.network, model.method)
        model.fitted, model.thresholds, model.revisions = trained.fitted, None, trained.revisions
        model.scaling = trained.scaling
    return history


def _is_launched(fabric: "Fabric") -> bool:
    """Returns whether torchrun or a cluster started one process per device."""
    environment = getattr(fabric.strategy, "cluster_environment", None)
    return environment is not None and bool(environment.creates_processes_externally)


def _run_pickled(fabric: "Fabric", pickled: bytes, folder: Path) -> bytes:
    """Trains in one of several processes and writes the model to `folder`."""
    model, task = pickle.loads(pickled)
    history = task(fabric)
    model.save(_model_path(fabric, folder))
    return pickle.dumps(history)  # Fabric would try to modify a dataclass


def _model_path(fabric: "Fabric", folder: Path) -> Path:
    """Returns the model file of this process; one each, because some strategies return in every process."""
    return folder / f"{fabric.global_rank}.daedl"


def _train(
    model: Model[Any],
    plan: Plan,
    train: Iterable[Batch],
    val: Iterable[Batch] | None,
    fit_data: Iterable[Batch],
    fabric: "Fabric",
) -> History:
    """Trains and runs the post-hoc fit on this process's share of the data."""
    rank, world_size = fabric.global_rank, fabric.world_size
    if val is not None:
        val = in_order(val, rank, world_size)
    # Seeded, because a user-defined sampler may draw random numbers.
    seed_epoch(plan.seed, plan.max_epochs + 1, rank)
    model.start(in_order(train, rank, world_size))
    if not (plan.resume and plan.checkpoint is not None and plan.checkpoint.exists()):
        seed_epoch(plan.seed, plan.max_epochs + 2, rank)
        _initialize(model, in_order(fit_data, rank, world_size))
    on_cpu = fabric.device.type == "cpu"
    if on_cpu:
        lay_out(model.network)
    share = shuffled_share(train, rank, world_size, plan.seed)
    history = train_all(fabric, model, plan, share, val)
    for logger in fabric.loggers:
        logger.finalize("success")
    if on_cpu:  # the layout of a loaded model, so that both predict bit for bit the same
        lay_out(model.network, torch.contiguous_format)
    # Seeded, because a dataset may draw random numbers; the fit must not depend on interruptions.
    seed_epoch(plan.seed, plan.max_epochs, rank)
    if plan.progress and rank == 0 and model.method.needs_fit:
        # With many classes it takes minutes.
        fitted = "the density" if hasattr(model.method, "covariance") else model.method.name
        print(f"fitting {fitted}", flush=True)
    if model.method.fit_split == "training":
        model.fit_post_hoc(in_order(fit_data, rank, world_size), val)
    elif val is not None:
        model.fit_post_hoc(val)
    return history


def _initialize(model: Model[Any], data: Iterable[Batch]) -> None:
    """Passes the first training inputs to a network that computes weights from them."""
    if type(model.network.plain).initialize_from is Network.initialize_from:
        return
    inputs: list[Tensor] = []
    for number, batch in enumerate(data):
        where = f" of batch {number} of the training data"
        inputs.append(model.prepare(require_batch(batch, where)[0], where))
        if sum(map(len, inputs)) >= INITIALIZED_ON:
            break
    if inputs:
        model.network.initialize_from(torch.cat(inputs)[:INITIALIZED_ON])


def _class_weights(
    class_weights: str | Sequence[float] | Tensor, model: Model[Any], train: Iterable[Batch]
) -> Tensor:
    """Returns one weight per class (C,)."""
    if not isinstance(model, Classifier):
        raise ValueError(
            f"class_weights is {class_weights!r} for a regressor; expected weights of samples: pass them as "
            "a third array of the training data"
        )
    number = model.network.num_classes
    if isinstance(class_weights, str):
        if class_weights != "balanced":
            raise ValueError(
                f"class_weights is {class_weights!r}; expected 'balanced', or one number per class"
            )
        counts = model.class_counts(in_order(train))
        return counts.sum() / (number * counts.clamp_min(1)).float()
    weights = torch.as_tensor(class_weights, dtype=torch.float32)
    require_weights(weights, number, " of the classes")
    return weights
