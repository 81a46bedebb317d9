"""The training loop: phases, epochs, early stopping and checkpoints."""

import copy
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from daedl.data.batches import Batch
from daedl.data.loaders import count, generators, start_epoch
from daedl.distributed import broadcast_buffers
from daedl.methods.base import Phase
from daedl.model import Model
from daedl.training.bars import Bars, show_bars
from daedl.training.callbacks import call
from daedl.training.checkpoint import Checkpoint
from daedl.training.history import Epoch, History
from daedl.training.passes import Passes
from daedl.training.plan import Plan
from daedl.training.randomness import seed_epoch
from daedl.training.steps import STEPPED_BY_BATCH, PlainSteps, Steps

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train_all(
    fabric: "Fabric",
    model: Model[Any],
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
        model: Model[Any],
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
        named = list(model.network.named_parameters())
        self.frozen = [
            each for name, each in named if each.requires_grad and phase.trains not in name
        ]
        optimizer = plan.optimizer(each for name, each in named if phase.trains in name)
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
            network, self.optimizer = self.fabric.setup(self.model.network, self.bare_optimizer)
            fabric, clip = self.fabric, self.plan.gradient_clip
            if plain := _needs_no_wrapper(fabric):
                network = self.model.network
            wrapped = fabric, network, self.optimizer, self.scheduler, clip
            steps = PlainSteps(*wrapped, self.bare_optimizer) if plain else Steps(*wrapped)
            self.passes = Passes(
                fabric, self.model, network, steps, self.phase.method, self.plan.class_weights
            )
            self.train = self.passes.prepared(self.train)
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
        train_loss = self.passes.train(bars.batches(self.train, epoch), epoch)
        broadcast_buffers(self.model.network)
        val_loss, val_accuracy, chance = self.passes.validate(self.val)
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
            state = self.model.network.state_dict()
            # Without validation data the present weights are always the best.
            self.best = state if val_loss is None else copy.deepcopy(state)

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

    With one process in full precision that takes a tenth of a step of a small network (measured).
    """
    from lightning_fabric.plugins import Precision  # noqa: PLC0415 (slow to import)
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy  # noqa: PLC0415

    return (
        isinstance(fabric.strategy, SingleDeviceStrategy)
        and type(fabric.strategy.precision) is Precision
    )
