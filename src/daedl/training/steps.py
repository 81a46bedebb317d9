"""A step of the optimiser, through Fabric or without it."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Schedulers that step after each batch; all others step after each epoch.
STEPPED_BY_BATCH = (OneCycleLR, CyclicLR)


@dataclass(frozen=True, eq=False)
class Steps:
    """Takes steps of an optimiser that Fabric set up.

    Attributes:
        network, optimizer: of Fabric, around those of the training.
        scheduler: stepped here if it steps after each batch.
        gradient_clip: largest gradient norm.
    """

    fabric: "Fabric"
    network: Any
    optimizer: Any
    scheduler: LRScheduler
    gradient_clip: float | None

    def clear(self) -> None:
        """Removes the gradients of the last step."""
        self.optimizer.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients and limits their norm."""
        self.fabric.backward(loss)
        if self.gradient_clip is not None:
            self.fabric.clip_gradients(self.network, self.optimizer, max_norm=self.gradient_clip)

    def step(self) -> None:
        """Changes the parameters."""
        self.optimizer.step()
        if isinstance(self.scheduler, STEPPED_BY_BATCH):
            self.scheduler.step()


@dataclass(frozen=True, eq=False)
class PlainSteps(Steps):
    """The same steps with one process in full precision, where Fabric adds nothing but its overhead.

    That overhead, and those of PyTorch's functions that search a network for its parameters, take a third
    of a step of a small network.

    Attributes:
        bare: the optimiser that Fabric wraps.
    """

    bare: Optimizer

    @cached_property
    def _parameters(self) -> list[Tensor]:
        return [each for group in self.bare.param_groups for each in group["params"]]

    def clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)
        if self.gradient_clip is None:
            return
        gradients = [each.grad for each in self._parameters if each.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if not math.isfinite(value := norm.item()):
            torch.nn.utils.get_total_norm(gradients, error_if_nonfinite=True)  # raises
        # PyTorch also multiplies gradients within the limit, by 1.
        if value > self.gradient_clip:
            factor = self.gradient_clip / (norm + 1e-6)
            torch._foreach_mul_(gradients, factor.clamp_max(1.0))

    def step(self) -> None:
        self.bare.step()
        if isinstance(self.scheduler, STEPPED_BY_BATCH):
            self.scheduler.step()
