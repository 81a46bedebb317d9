"""Evaluation of predicted numbers: errors, likelihood, CRPS, and coverage and width of intervals."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from daedl.evaluate import Measured
from daedl.metrics import auroc
from daedl.regression_prediction import RegressionPrediction

LEVELS = (0.5, 0.8, 0.9, 0.95)


def regression(
    prediction: RegressionPrediction, targets: Tensor, levels: Sequence[float] = LEVELS
) -> list[Measured]:
    """Evaluates predictions for N inputs with targets (N,) or (N, D), in the units of the targets.

    RMSE, MAE, NLL (−ln p per target), CRPS, and coverage and mean width of the central intervals of each
    level, with the score "conformal" those of a calibrated regressor. With several targets, means over them.
    """
    targets = targets.to(prediction.mean).view(prediction.mean.shape)
    exact = prediction.to("cpu")
    truth = targets.cpu()
    figures = {
        "rmse": (exact.mean - truth).square().mean(0).sqrt(),
        "mae": (exact.mean - truth).abs(),
        "nll": -exact.nig.log_prob(truth),
        "crps": exact.nig.crps(truth),
    }
    measured = [_measured("distribution", name, values) for name, values in figures.items()]
    measured += _intervals("distribution", exact, truth, levels, conformal=False)
    if exact.thresholds is not None:
        measured += _intervals("conformal", exact, truth, levels, conformal=True)
        measured.append(_measured("accept", "share", exact.accept.double()))
    return measured


def separated(
    task: str, known: RegressionPrediction, unlike: RegressionPrediction
) -> list[Measured]:
    """AUROC of telling unlike inputs from known ones, by every score and by the total variance."""
    inside, outside = _finite_scores(known), _finite_scores(unlike)
    return [
        Measured(task, name, "auroc", auroc(values, outside[name]))
        for name, values in inside.items()
    ]


def _finite_scores(p: RegressionPrediction) -> dict[str, Tensor]:
    largest = torch.finfo(torch.float64).max
    named = {**p.scores(), "total": p.joint(p.variance)}
    return {name: each.double().clamp(-largest, largest) for name, each in named.items()}


def coverage(low: Tensor, high: Tensor, targets: Tensor) -> float:
    """Share of the targets (N, ...) within their bounds."""
    return float(((low <= targets) & (targets <= high)).double().mean())


def _intervals(
    score: str, p: RegressionPrediction, truth: Tensor, levels: Sequence[float], conformal: bool
) -> list[Measured]:
    measured = []
    for level in levels:
        low, high = p.interval(level, conformal)
        name = f"{100 * level:g}"
        measured.append(
            Measured("regression", score, f"coverage{name}", coverage(low, high, truth))
        )
        measured.append(_measured(score, f"width{name}", high - low))
    return measured


def _measured(score: str, name: str, values: Any) -> Measured:
    return Measured("regression", score, name, float(torch.as_tensor(values).double().mean()))
