"""Passes over the training and the validation data."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from daedl.checks import require_batch, require_finite, require_weights
from daedl.data.batches import Batch
from daedl.data.rows import Prepared, RowLoader
from daedl.distributed import sum_across
from daedl.inputs import Inputs, count_rows
from daedl.methods.base import BaseMethod, Method
from daedl.model import Model
from daedl.outputs import collect
from daedl.training.chance import chance_level, confusion_margins
from daedl.training.steps import Steps

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Values of a table up to which it is prepared once: its copy in float32 takes 512 MB (chosen).
LARGEST_TABLE = 2**27


@dataclass(frozen=True, eq=False)
class Passes:
    """Passes of one process over its training and validation data, in one training phase.

    Attributes:
        fabric: determines device, precision and processes.
        model: the classifier.
        network: of Fabric, around the network of `model`.
        steps: of the optimiser.
        method: of the training phase.
        class_weights: one weight per class (C,).
    """

    fabric: "Fabric"
    model: Model[Any]
    network: Any
    steps: Steps
    method: BaseMethod
    class_weights: Tensor | None

    def prepared(self, data: Iterable[Batch]) -> Iterable[Batch]:
        """Prepares a table in memory once, instead of each batch in every epoch."""
        if not isinstance(data, RowLoader) or self.model.preprocess is not None:
            return data
        inputs = data.dataset.parts[0]
        if not isinstance(inputs, Tensor) or inputs.ndim != 2 or inputs.numel() > LARGEST_TABLE:
            return data
        return data.prepared(partial(self._prepare, where=" of the training data"))

    def train(self, batches: Iterable[Batch], epoch: int) -> float:
        """Takes a step per batch; returns the mean loss per sample of all processes."""
        classifies = isinstance(self.method, Method)
        num_classes = self.model.network.num_classes if classifies else 0
        self.network.train()
        total, samples = 0.0, 0
        counts = torch.zeros(num_classes, dtype=torch.long)
        for number, batch in enumerate(batches):
            where = f" of epoch {epoch}, batch {number}"
            ready = batch if isinstance(batch, Prepared) else self._prepare(batch, where)
            images, targets, weights = ready
            self.steps.clear()
            loss = self.method.training_loss(
                self.network, images, targets, epoch, weights, self.model.preprocess
            )
            # The only wait for the device in a step.
            value = loss.item()
            if not math.isfinite(value):
                self._explain(images, where)
            self.steps.backward(loss)
            if number == 0:
                self.model.reset()  # the step invalidates post-hoc fits
            self.steps.step()
            total += value * (len(targets) if self.method.reduction == "mean" else 1)
            samples += len(targets)
            if epoch == 0 and classifies:
                counts += torch.bincount(targets.cpu(), minlength=num_classes)
        sums = sum_across(torch.tensor([total, samples, *counts.tolist()], dtype=torch.float64))
        _require_all_classes(sums[1:], epoch)
        return float(sums[0] / sums[1])

    def validate(
        self, data: Iterable[Batch] | None
    ) -> tuple[float | None, float | None, float | None]:
        """Returns mean loss, accuracy and chance level on `data` in eval mode, of all processes."""
        if data is None:
            return None, None, None
        model, method = self.model, self.method
        # Not the DDP wrapper, which would wait for processes with fewer batches.
        with self.fabric.autocast():
            outputs, targets = collect(
                model.network, data, model.prepare, name="validation data", convert=model.targets
            )
        losses = method.loss(outputs, targets, epoch=math.inf)
        if (weights := self._class_weights(targets)) is not None:
            losses = losses * weights
        judged: tuple[Tensor, ...] = ()
        if isinstance(method, Method):
            predicted = method.predict_labels(outputs)
            margins = confusion_margins(predicted, targets, model.network.num_classes)
            judged = (predicted == targets).double().sum(), *margins.flatten()
        number = torch.tensor(len(targets), dtype=torch.float64)
        sums = sum_across(torch.stack((number, losses.double().sum(), *judged)))
        loss = float(sums[1] / sums[0])
        if not math.isfinite(loss):
            raise ValueError(
                f"the validation loss is {loss}; expected a finite number: lower the learning rate"
            )
        if not judged:
            return loss, None, None
        return loss, float(sums[2] / sums[0]), chance_level(sums[3:].view_as(margins))

    def _prepare(self, batch: Any, where: str) -> Prepared:
        """Validates a batch; returns its inputs, targets and weights on the device."""
        raw, targets, weights = require_batch(batch, where)
        inputs = self.model.prepare(raw, where)
        number, like = count_rows(inputs), next(self.model.network.parameters())
        targets = self.model.targets(targets, number, where).to(like.device)
        if weights is not None:
            require_weights(weights, number, where)
            weights = weights.to(like)
        by_class = self._class_weights(targets)
        if weights is None or by_class is None:
            return Prepared(inputs, targets, by_class if weights is None else weights)
        return Prepared(inputs, targets, weights * by_class)

    def _class_weights(self, targets: Tensor) -> Tensor | None:
        """Returns the weight of each target's class (B,)."""
        weights = self.class_weights
        return None if weights is None else weights.to(targets.device)[targets]

    def _explain(self, images: Inputs, where: str) -> None:
        """Raises an error that explains why the loss of a batch is NaN or infinite."""
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
