"""Optimisers and schedules as values, for the arguments `optimizer` and `schedule` of `daedl.fit`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

Builder = Callable[[Iterable[Tensor]], Optimizer]
ONE_RATE: Mapping[int, float] = MappingProxyType({})


def sgd(
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    factors: Mapping[int, float] = ONE_RATE,
) -> Builder:
    """Returns a function that builds SGD with Nesterov momentum.

    Parameters with one dimension, biases and those of BatchNorm, are not decayed.

    Arguments:
        factors: rates by the number of dimensions of a parameter, as multiples of `lr`: 4 for convolutions,
            2 for dense layers, 1 for biases and BatchNorm; 1.0 by default.
    """
    return partial(_sgd, lr, momentum, weight_decay, dict(factors))


def _sgd(
    lr: float,
    momentum: float,
    weight_decay: float,
    factors: Mapping[int, float],
    parameters: Iterable[Tensor],
) -> Optimizer:
    by_rank: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_rank.setdefault(parameter.ndim, []).append(parameter)
    groups = [
        {
            "params": group,
            "lr": lr * factors.get(rank, 1.0),
            "weight_decay": weight_decay if rank > 1 else 0.0,
        }
        for rank, group in sorted(by_rank.items(), reverse=True)
    ]
    return SGD(groups, momentum=momentum, nesterov=momentum > 0)


@dataclass(frozen=True)
class OneCycle:
    """Increases each group's rate to that of the optimiser, then decreases it, with a step per batch.

    Attributes:
        rise: share of the steps in which the rate increases.
        start, end: rates of the first and the last step, as shares of the largest.
        shape: "linear" or "cos".
    """

    rise: float = 0.25
    start: float = 0.1
    end: float = 1e-4
    shape: Literal["linear", "cos"] = "linear"

    def build(self, optimizer: Optimizer, steps: int) -> OneCycleLR:
        """Builds the schedule for the number of `steps` of the whole training."""
        # OneCycleLR divides by the length of the rise: rise * steps - 1.
        rise = self.rise if self.rise * steps != 1 else 0.99 * self.rise
        return OneCycleLR(
            optimizer,
            [group["lr"] for group in optimizer.param_groups],
            total_steps=steps,
            pct_start=rise,
            anneal_strategy=self.shape,
            cycle_momentum=False,
            div_factor=1 / self.start,
            final_div_factor=self.start / self.end,
        )
