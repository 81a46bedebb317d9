"""Evaluation of predicted numbers: errors, likelihood, CRPS, and coverage and width of intervals.

Metrics of the task "regression" are called with a prediction for N inputs and targets (N,) or (N, D), in the
units of the targets. With several targets they are means over them. Metrics of intervals are computed twice
for a calibrated regressor: for the predicted distribution, and for the conformal intervals.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from daedl.evaluate import Measured, Task
from daedl.metrics import auroc, metric
from daedl.regression_prediction import RegressionPrediction

LEVELS = (0.5, 0.8, 0.9, 0.95)
of_distribution = partial(metric, "regression", of="distribution", lower_is_better=True)


class Regression(Task[RegressionPrediction, Tensor]):
    """How large are the errors, and do intervals contain the targets?"""

    name = "regression"

    def arguments(
        self, prediction: RegressionPrediction, reference: Tensor
    ) -> Mapping[str, tuple[Any, ...]]:
        """prediction, targets; without thresholds, intervals are those of the distribution."""
        arguments = {"distribution": (prediction.limited(None), reference)}
        if prediction.thresholds is not None:
            arguments["conformal"] = (prediction, reference)
        return arguments


def regression(prediction: RegressionPrediction, targets: Tensor) -> list[Measured]:
    """Evaluates predictions for N inputs with targets (N,) or (N, D), in the units of the targets."""
    targets = targets.to(prediction.mean).view(prediction.mean.shape).cpu()
    exact = prediction.to("cpu")
    measured = Regression().measure(exact, targets)
    if exact.thresholds is not None:
        measured.append(Measured("regression", "accept", "share", _mean(exact.accept)))
    return measured


@of_distribution("rmse", "RMSE")
def rmse(p: RegressionPrediction, targets: Tensor) -> float:
    """Root of the mean squared error."""
    return _mean((p.mean - targets).square().mean(0).sqrt())


@of_distribution("mae", "MAE")
def mae(p: RegressionPrediction, targets: Tensor) -> float:
    """Mean absolute error."""
    return _mean((p.mean - targets).abs())


@of_distribution("nll", "NLL")
def nll(p: RegressionPrediction, targets: Tensor) -> float:
    """Mean of −ln p per target."""
    return _mean(-p.nig.log_prob(targets))


@of_distribution("crps", "CRPS")
def crps(p: RegressionPrediction, targets: Tensor) -> float:
    """Mean continuous ranked probability score."""
    return _mean(p.nig.crps(targets))


def coverage(p: RegressionPrediction, targets: Tensor, level: float) -> float:
    """Share of the targets within the intervals of this level."""
    low, high = p.interval(level)
    return _mean((low <= targets) & (targets <= high))


def width(p: RegressionPrediction, targets: Tensor, level: float) -> float:
    """Mean width of the intervals of this level, which depends on no target."""
    del targets
    low, high = p.interval(level)
    return _mean(high - low)


for _level in LEVELS:
    _percent = f"{100 * _level:g}"
    metric("regression", f"coverage{_percent}", f"coverage of {_percent}% intervals")(
        partial(coverage, level=_level)
    )
    metric(
        "regression", f"width{_percent}", f"width of {_percent}% intervals", lower_is_better=True
    )(partial(width, level=_level))


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def separated(
    task: str, known: RegressionPrediction, unlike: RegressionPrediction
) -> list[Measured]:
    """AUROC of OOD inputs against known ones, by every score and by the total variance."""
    inside, outside = _finite_scores(known), _finite_scores(unlike)
    return [
        Measured(task, name, "auroc", auroc(values, outside[name]))
        for name, values in inside.items()
    ]


def _finite_scores(p: RegressionPrediction) -> dict[str, Tensor]:
    largest = torch.finfo(torch.float64).max
    named = {**p.scores(), "total": p.joint(p.variance)}
    return {name: each.double().clamp(-largest, largest) for name, each in named.items()}
