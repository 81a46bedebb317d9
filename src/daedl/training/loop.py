"""The training loop: epochs, validation, early stopping, checkpoints."""

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from daedl.checks import require_batch, require_finite, require_targets, require_weights
from daedl.classifier import Classifier
from daedl.data.batches import Batch
from daedl.data.loaders import count, generators, start_epoch
from daedl.density import DensityEffect
from daedl.distributed import broadcast_buffers, sum_across
from daedl.methods.base import Phase
from daedl.outputs import collect
from daedl.training.bars import Bars, show_bars
from daedl.training.callbacks import call
from daedl.training.chance import chance_level, confusion_margins
from daedl.training.checkpoint import Checkpoint
from daedl.training.randomness import seed_epoch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Schedulers that step after each batch; all others step after each epoch.
STEPPED_BY_BATCH = (OneCycleLR, CyclicLR)


@dataclass(frozen=True)
class Epoch:
    """Results of one epoch. Losses are means over samples; `val_*` are None without validation data.

    `phase` names the training phase, for methods with several. Up to `chance_level`, `val_accuracy` is no
    better than chance.
    """

    train_loss: float
    val_loss: float | None
    val_accuracy: float | None
    learning_rate: float
    seconds: float
    phase: str = "training"
    chance_level: float | None = None

    def __str__(self) -> str:
        text = f"loss {self.train_loss:.4f}"
        if self.val_loss is not None:
            text += f", validation {self.val_loss:.4f}, accuracy {self.val_accuracy:.2%}"
        return text


@dataclass(frozen=True)
class History:
    """Results of `fit`.

    Attributes:
        epochs: one record per epoch, of all phases.
        best_epoch: zero-based epoch with the lowest validation loss of the last phase, whose weights were
            kept; the last epoch without validation data.
        stopped_early: whether early stopping ended the last phase.
        density_effect: effect of the density on the validation data, for methods with a density.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    stopped_early: bool
    density_effect: DensityEffect | None = None


@dataclass(frozen=True)
class Plan:
    """Settings of a training run; see `fit`.

    `scheduler` is called with the optimiser, the maximum number of epochs, and the number of batches per
    epoch (None if unknown).
    """

    max_epochs: int
    optimizer: Callable[[Iterable[Tensor]], Optimizer]
    scheduler: Callable[[Optimizer, int, int | None], LRScheduler]
    patience: int
    gradient_clip: float | None
    seed: int
    checkpoint: Path | None
    resume: bool
    progress: bool
    resume_key: Mapping[str, Any]
    class_weights: Tensor | None = None
    callbacks: Sequence[Any] = ()


def train_all(
    fabric: "Fabric",
    model: Classifier,
    plan: Plan,
    train: Iterable[Batch],
    val: Iterable[Batch] | None,
) -> History:
    """Runs all training phases of the method; `train` and `val` are the batches of this process."""
    epochs: tuple[Epoch, ...] = ()
    callbacks = plan.callbacks if fabric.is_global_zero else ()
    call(callbacks, "on_fit_start", model)
    for number, phase in enumerate(model.method.phases()):
        run = Run(fabric, model, plan, train, val, phase, number, epochs)
        history = run.go()
        epochs = history.epochs
    call(callbacks, "on_fit_end", history)
    return history


class Run:
    """One training phase in one process: its state and the loop over epochs.

    `number` is the number of previous phases, `earlier` their epochs.
    """

    def __init__(
        self,
        fabric: "Fabric",
        model: Classifier,
        plan: Plan,
        train: Iterable[Batch],
        val: Iterable[Batch] | None,
        phase: Phase,
        number: int,
        earlier: tuple[Epoch, ...],
    ) -> None:
        self.fabric, self.model, self.plan, self.train, self.val = fabric, model, plan, train, val
        self.phase, self.number, self.earlier = phase, number, earlier
        self.max_epochs = plan.max_epochs if phase.max_epochs is None else phase.max_epochs
        self.frozen = [
            parameter
            for name, parameter in model.network.named_parameters()
            if parameter.requires_grad and phase.trains not in name
        ]
        optimizer = plan.optimizer(
            parameter
            for name, parameter in model.network.named_parameters()
            if phase.trains in name
        )
        self.num_batches = count(train)
        self.scheduler = plan.scheduler(optimizer, self.max_epochs, self.num_batches)
        self.run = self._run_key(optimizer)
        self.bare_optimizer = optimizer
        self.generators = generators(train)
        self.epochs: list[Epoch] = []
        self.best_epoch = -1
        self.best: dict[str, Tensor] = {}

    def _run_key(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns the values that a checkpoint must match to be resumed."""
        # Settings of post-hoc fits, such as k of k-NN, may differ.
        network, method, plan = self.model.network, self.model.method.training_method(), self.plan
        return {
            **plan.resume_key,
            "network": [type(network).__name__, network.arguments],
            "method": [method.name, method.arguments()],
            "optimizer": type(optimizer).__name__,
            "schedule": [
                type(self.scheduler).__name__,
                *(getattr(self.scheduler, name, None) for name in ("gamma", "total_steps")),
            ],
            "learning rate": optimizer.param_groups[0]["lr"],
            "gradient clip": plan.gradient_clip,
            "class weights": None if plan.class_weights is None else plan.class_weights.tolist(),
            "seed": plan.seed,
            "processes": self.fabric.world_size,
            "batches": self.num_batches,
        }

    def go(self) -> History:
        """Trains until the last epoch or until the validation loss stops decreasing."""
        try:
            for parameter in self.frozen:
                parameter.requires_grad_(False)
            # After freezing, because DDP waits for the gradients of all parameters that require them.
            setup = self.fabric.setup(self.model.network, self.bare_optimizer)
            self.network, self.optimizer = setup
            if _needs_no_wrapper(self.fabric):
                self.network = self.model.network
            return self._go()
        finally:
            for parameter in self.frozen:
                parameter.requires_grad_(True)

    def _go(self) -> History:
        plan = self.plan
        if plan.resume and plan.checkpoint is not None and plan.checkpoint.exists():
            checkpoint = Checkpoint.load(plan.checkpoint)
            # Schedules differ between phases; only the phase of the checkpoint can compare them.
            shared = {key: value for key, value in self.run.items() if key != "schedule"}
            checkpoint.require(plan.checkpoint, shared)
            if checkpoint.phase > self.number:  # this phase is complete
                return self._history(())
            if checkpoint.phase == self.number:
                checkpoint.require(plan.checkpoint, self.run)
                self._restore(checkpoint)
        self.fabric.barrier()
        visible = plan.progress and self.fabric.is_global_zero
        done = len(self.epochs)
        with show_bars(visible, self.max_epochs, done) as bars, torch.enable_grad():
            while len(self.epochs) < self.max_epochs and not self._stalled():
                self._run_epoch(len(self.epochs), bars)
                if plan.checkpoint is not None and self.fabric.is_global_zero:
                    self._checkpoint().save(plan.checkpoint)
                self.fabric.barrier()
                bars.epoch_done(str(self.epochs[-1]))
                self._report(self.epochs[-1])
        self.model.network.load_state_dict(self.best)
        return self._history(self.epochs)

    def _report(self, epoch: Epoch) -> None:
        """Passes the metrics of an epoch to callbacks and loggers."""
        number = len(self.earlier) + len(self.epochs) - 1
        metrics = {"epoch": number, **{k: v for k, v in asdict(epoch).items() if v is not None}}
        if self.fabric.is_global_zero:
            call(self.plan.callbacks, "on_epoch_end", metrics)
        numbers = {name: value for name, value in metrics.items() if name not in ("epoch", "phase")}
        self.fabric.log_dict(numbers, step=number)

    def _history(self, epochs: Sequence[Epoch]) -> History:
        """Returns the history of all phases so far."""
        stopped_early = self._stalled() and len(epochs) < self.max_epochs
        best = len(self.earlier) + self.best_epoch
        return History((*self.earlier, *epochs), best, stopped_early)

    def _stalled(self) -> bool:
        return len(self.epochs) - 1 - self.best_epoch >= self.plan.patience

    def _run_epoch(self, epoch: int, bars: Bars) -> None:
        started = time.perf_counter()
        overall = len(self.earlier) + epoch
        seed_epoch(self.plan.seed, overall, self.fabric.global_rank)
        start_epoch(self.train, overall)
        learning_rate = self.optimizer.param_groups[0]["lr"]
        train_loss = self._train_epoch(epoch, bars)
        broadcast_buffers(self.model.network)
        val_loss, val_accuracy, chance = self._validate()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(train_loss if val_loss is None else val_loss)
        elif not isinstance(self.scheduler, STEPPED_BY_BATCH):
            self.scheduler.step()
        before = [e.val_loss for e in self.epochs if e.val_loss is not None]
        self.epochs.append(
            Epoch(
                train_loss,
                val_loss,
                val_accuracy,
                learning_rate,
                time.perf_counter() - started,
                self.phase.name,
                chance,
            )
        )
        if val_loss is None or val_loss < min(before, default=math.inf):
            self.best_epoch = epoch
            self.best = copy.deepcopy(self.model.network.state_dict())

    def _train_epoch(self, epoch: int, bars: Bars) -> float:
        """Trains for one pass over the data; returns the mean loss per sample."""
        method, num_classes = self.phase.method, self.model.network.num_classes
        self.network.train()
        total, samples = 0.0, 0
        counts = torch.zeros(num_classes, dtype=torch.long)
        for number, batch in enumerate(bars.batches(self.train, epoch)):
            where = f" of epoch {epoch}, batch {number}"
            images, targets, weights = self._prepare_batch(batch, where)
            self.optimizer.zero_grad()
            loss = method.training_loss(self.network, images, targets, epoch, weights)
            # The only wait for the device in a step.
            value = loss.item()
            if not math.isfinite(value):
                self._explain(images, where)
            self.fabric.backward(loss)
            if self.plan.gradient_clip is not None:
                clip = self.plan.gradient_clip
                self.fabric.clip_gradients(self.network, self.optimizer, max_norm=clip)
            if number == 0:
                self.model.reset()  # the step invalidates post-hoc fits
            self.optimizer.step()
            if isinstance(self.scheduler, STEPPED_BY_BATCH):
                self.scheduler.step()
            total += value * (len(images) if method.reduction == "mean" else 1)
            samples += len(images)
            if epoch == 0:
                counts += torch.bincount(targets.cpu(), minlength=num_classes)
        sums = sum_across(torch.tensor([total, samples, *counts.tolist()], dtype=torch.float64))
        _require_all_classes(sums[1:], epoch)
        return float(sums[0] / sums[1])

    def _prepare_batch(self, batch: Batch, where: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Validates a training batch; returns its inputs, targets and weights on the device."""
        raw, targets, weights = require_batch(batch, where)
        inputs = self.model.prepare(raw, where)
        require_targets(targets, self.model.network.num_classes, len(inputs), where)
        if weights is not None:
            require_weights(weights, len(inputs), where)
            weights = weights.to(inputs)
        targets = targets.to(inputs.device).long()
        class_weights = self._class_weights(targets)
        if weights is None or class_weights is None:
            return inputs, targets, class_weights if weights is None else weights
        return inputs, targets, weights * class_weights

    def _class_weights(self, targets: Tensor) -> Tensor | None:
        """Returns the weight of each target's class (B,)."""
        weights = self.plan.class_weights
        return None if weights is None else weights.to(targets.device)[targets]

    def _validate(self) -> tuple[float | None, float | None, float | None]:
        """Returns mean loss, accuracy and chance level on the validation data, in eval mode."""
        if self.val is None:
            return None, None, None
        # Not the DDP wrapper, which would wait for processes with fewer batches.
        with self.fabric.autocast():
            outputs, targets = collect(
                self.model.network, self.val, self.model.prepare, name="validation data"
            )
        losses = self.phase.method.loss(outputs, targets, epoch=math.inf)
        if (weights := self._class_weights(targets)) is not None:
            losses = losses * weights
        predicted = self.phase.method.predict_labels(outputs)
        margins = confusion_margins(predicted, targets, self.model.network.num_classes)
        right = (predicted == targets).double().sum()
        sums = sum_across(torch.stack((losses.double().sum(), right, *margins.flatten())))
        margins = sums[2:].view_as(margins)
        loss, accuracy = (sums[:2] / margins[1].sum()).tolist()
        if not math.isfinite(loss):
            raise ValueError(
                f"the validation loss is {loss}; expected a finite number: lower the learning rate"
            )
        return loss, accuracy, chance_level(margins)

    def _explain(self, images: Tensor, where: str) -> None:
        """Raises an error that explains why the loss of a training batch is NaN or infinite."""
        with torch.no_grad():
            outputs = self.model.network(images)
        require_finite(outputs.features, "features", where)
        require_finite(outputs.logits, "logits", where)
        raise ValueError(
            f"the loss{where} is NaN or infinite although inputs, features and logits are finite, with "
            f"logits from {outputs.logits.min():.3g} to {outputs.logits.max():.3g}; expected a finite "
            "loss: scale the inputs if logits are in the hundreds at the first batch, lower the learning "
            "rate, or check the method's loss"
        )

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            run=self.run,
            phase=self.number,
            earlier=[asdict(epoch) for epoch in self.earlier],
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
        self.earlier = tuple(Epoch(**record) for record in checkpoint.earlier)
        self.epochs = [Epoch(**record) for record in checkpoint.epochs]
        self.best_epoch, self.best = checkpoint.best_epoch, checkpoint.best
        self.model.network.load_state_dict(checkpoint.network)
        self.model.reset()
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.scheduler.load_state_dict(checkpoint.scheduler)
        self.fabric.strategy.precision.load_state_dict(checkpoint.precision)
        for generator, state in zip(self.generators, checkpoint.generators, strict=True):
            generator.set_state(state)


def _needs_no_wrapper(fabric: "Fabric") -> bool:
    """Returns whether Fabric's wrapper of the network would only convert inputs and outputs to themselves.

    With one process in full precision, that takes a tenth of the step of a small network (measured).
    """
    from lightning_fabric.plugins import Precision  # noqa: PLC0415 (slow to import)
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy  # noqa: PLC0415

    return (
        isinstance(fabric.strategy, SingleDeviceStrategy)
        and type(fabric.strategy.precision) is Precision
    )


def _require_all_classes(counts: Tensor, epoch: int) -> None:
    """Raises if the epoch had no samples, or epoch 0 none of a class; `counts` (1 + C,): all, per class."""
    if counts[0] == 0:
        raise ValueError(
            "the training data have no batch; expected at least one (inputs, labels) pair"
        )
    missing = (counts[1:] == 0).nonzero().flatten().tolist()
    if missing and epoch == 0:
        raise ValueError(
            f"none of {int(counts[0])} training samples is of class {', '.join(map(str, missing))}; "
            "expected samples of every class: add samples, or build the network with fewer classes and "
            "renumber the labels"
        )
