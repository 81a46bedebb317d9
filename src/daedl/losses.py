"""Losses of Dirichlet predictions in closed form.

`log_alpha` is (B, C), `targets` (B,) are class indices. `reduction` is "none" for (B,), "mean" or "sum".
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from daedl.dirichlet import Dirichlet, WithGradient, kl_to_uniform

Reduction = Literal["none", "mean", "sum"]


def reduce(losses: Tensor, reduction: Reduction, weights: Tensor | None = None) -> Tensor:
    """Reduce per-sample `losses` (B,), times `weights` (B,) if given, to their mean or sum over B."""
    if weights is not None:
        losses = weights.to(losses) * losses
    match reduction:
        case "none":
            return losses
        case "mean":
            return losses.mean()
        case "sum":
            return losses.sum()
    raise ValueError(f"reduction is {reduction!r}; expected 'none', 'mean' or 'sum': use 'mean'")


def squared_error(log_alpha: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
    """‖y − m‖² = Σ_c (y_c − m_c)², m = α / α₀: the expected MSE without the variance."""
    mean = log_alpha.softmax(-1)
    return reduce((mean - one_hot(targets, mean)).square().sum(-1), reduction)


def one_hot(targets: Tensor, like: Tensor) -> Tensor:
    """One-hot vectors (B, C) with the dtype of `like` (B, C).

    F.one_hot synchronises the device to find the range.
    """
    return torch.zeros_like(like).scatter_(-1, targets.unsqueeze(-1), 1.0)


def expected_mse(log_alpha: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
    """E_{π ~ Dir(α)} ‖y − π‖² = Σ_c (y_c − m_c)² + Σ_c m_c (1 − m_c) / (α₀ + 1).

    The first term of the paper's Eq. 2 (Sensoy et al., 2018).
    """
    return reduce(WithGradient.apply(_expected_mse, log_alpha, targets), reduction)  # type: ignore[no-untyped-call]


def _expected_mse(log_alpha: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`expected_mse` (B,) and its gradient (B, C)."""
    log_precision = log_alpha.logsumexp(-1, keepdim=True)
    mean = (log_alpha - log_precision).exp_()
    shrink = torch.sigmoid(-log_precision)  # 1 / (α₀ + 1)
    error = mean - one_hot(targets, mean)
    spread = (mean * (1 - mean)).sum(-1, keepdim=True)
    # Each term minus its mean under m is the gradient through the softmax.
    slope = error - shrink * mean
    slope -= (mean * slope).sum(-1, keepdim=True)
    gradient = slope.mul_(2).sub_(shrink * (1 - shrink) * spread).mul_(mean)
    return error.square_().sum(-1) + (shrink * spread).squeeze(-1), gradient


def uncertain_cross_entropy(
    log_alpha: Tensor, targets: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """UCE: E_{π ~ Dir(α)} [−ln π_y] = ψ(α₀) − ψ(α_y) (Charpentier et al., 2020)."""
    expected_log = Dirichlet(log_alpha).expected_log.gather(-1, targets.unsqueeze(-1))
    return reduce(-expected_log.squeeze(-1), reduction)


def masked_kl_to_uniform(
    log_alpha: Tensor, targets: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """KL(Dir(α̃) ‖ Dir(1)) with α̃ = y + (1 − y) ⊙ α: the concentration of the true class is 1.

    The second term of the paper's Eq. 2 without weight. Its gradient with respect to the log_alpha of
    the true class is zero.
    """
    masked = log_alpha.scatter(-1, targets.unsqueeze(-1), 0.0)
    return reduce(Dirichlet(masked).kl_to_uniform(), reduction)


def annealed(weight: float, epoch: float, over_epochs: int) -> float:
    """λ_t = weight · min(1, t / over_epochs), t the epoch counted from 0; constant if `over_epochs` is 0."""
    if over_epochs < 0 or not weight >= 0:
        raise ValueError(
            f"weight is {weight} and over_epochs is {over_epochs}; expected both to be at least 0: "
            "use over_epochs=0 for a constant weight"
        )
    return weight if over_epochs == 0 else weight * min(1.0, epoch / over_epochs)


def evidential(
    log_alpha: Tensor, targets: Tensor, kl_weight: float, reduction: Reduction = "mean"
) -> Tensor:
    """Expected MSE + λ · masked KL to uniform: the paper's Eq. 2 with λ = `kl_weight`."""
    if kl_weight == 0:
        return expected_mse(log_alpha, targets, reduction)
    function = partial(_evidential, kl_weight)
    return reduce(WithGradient.apply(function, log_alpha, targets), reduction)  # type: ignore[no-untyped-call]


def _evidential(kl_weight: float, log_alpha: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`evidential` (B,) and its gradient (B, C)."""
    index = targets.unsqueeze(-1)
    losses, gradient = _expected_mse(log_alpha, targets)
    divergence, slope = kl_to_uniform(log_alpha.scatter(-1, index, 0.0))
    slope.scatter_(-1, index, 0.0)
    return losses.add_(divergence, alpha=kl_weight), gradient.add_(slope, alpha=kl_weight)
