"""Questions asked of predictions: pure functions from predictions to measured figures."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from torch import Tensor

from daedl import metrics
from daedl.prediction import Prediction


class Measured(NamedTuple):
    """One figure: `score` is the uncertainty that it judges, or "probs", "labels"."""

    task: str
    score: str
    metric: str
    value: float


def classification(prediction: Prediction, targets: Tensor) -> list[Measured]:
    """How right and how honest predictions of N in-distribution samples are; targets (N,).

    Accuracy, and Brier score, log loss and calibration error of the probabilities; for each
    uncertainty score the average precision of telling right predictions from wrong ones, and the area
    under the risk-coverage curve.
    """
    probs, labels = prediction.probs, prediction.labels
    measured = [
        Measured("classification", "labels", "accuracy", metrics.accuracy(labels, targets)),
        Measured("classification", "probs", "brier", metrics.brier(probs, targets)),
        Measured("classification", "probs", "nll", metrics.nll(probs, targets)),
        Measured("calibration", "probs", "ece", metrics.ece(probs, targets, labels=labels)),
    ]
    for score, uncertainty in prediction.scores().items():
        value = metrics.misclassification_aupr(uncertainty, labels, targets)
        measured.append(Measured("misclassification", score, "aupr", value))
        area = metrics.aurc(uncertainty, labels, targets)
        measured.append(Measured("misclassification", score, "aurc", area))
    return measured


def ood_detection(inside: Prediction, outside: Prediction, task: str = "ood") -> list[Measured]:
    """How well each uncertainty score tells N in-distribution samples from M others.

    In-distribution is the positive class, as in the paper's tables. `task` is "shift" where the
    others are corruptions of the known data.
    """
    measured = []
    others = outside.scores()
    for score, uncertainty in inside.scores().items():
        pair = uncertainty, others[score]
        measured += [
            Measured(task, score, "aupr", metrics.aupr(*pair)),
            Measured(task, score, "auroc", metrics.auroc(*pair)),
            Measured(task, score, "fpr95", metrics.fpr_at_95(*pair)),
        ]
    return measured


def averaged(measured: Sequence[Sequence[Measured]]) -> list[Measured]:
    """The mean of each figure over several data sets, of which all have the same figures."""
    return [
        same[0]._replace(value=fmean(each.value for each in same))
        for same in zip(*measured, strict=True)
    ]
