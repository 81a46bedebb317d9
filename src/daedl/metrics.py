"""Metrics that compare predictions with the truth: pure functions of arrays or tensors.

Larger uncertainties mean less certain. In detection metrics in-distribution is the positive class, as in the
paper's tables, so that a perfect score is 1.

A metric registered with `@metric` is computed by its task in `daedl.evaluate` and listed by `daedl evaluate`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Function = TypeVar("Function", bound=Callable[..., float])


@dataclass(frozen=True)
class Metric:
    """A metric of a task.

    Attributes:
        name: in results, such as "fpr95"; unique within its task.
        label: in tables, such as "FPR95".
        compute: called with the arguments that the task defines.
        of: the one score of the task that it evaluates, such as "probs"; None for every score.
        lower_is_better: whether smaller values are better.
    """

    name: str
    label: str
    compute: Callable[..., float]
    of: str | None = None
    lower_is_better: bool = False

    @property
    def title(self) -> str:
        """The label with an arrow that points towards better values: "FPR95 ↓"."""
        return f"{self.label} {'↓' if self.lower_is_better else '↑'}"


# Every registered metric, by task and name, in the order of tables.
METRICS: dict[tuple[str, str], Metric] = {}


def metric(
    task: str,
    name: str,
    label: str,
    *,
    of: str | None = None,
    lower_is_better: bool = False,
) -> Callable[[Function], Function]:
    """Register the decorated function as a metric of `task`; see `Metric` for the arguments.

    The tasks of `daedl.evaluate` define the signature of their metrics.
    """
    if (task, name) in METRICS:
        raise ValueError(
            f"{name!r} is already a metric of the task {task!r}; expected a new name: choose another"
        )

    def register(function: Function) -> Function:
        METRICS[task, name] = Metric(name, label, function, of, lower_is_better)
        return function

    return register


def title(task: str, name: str) -> str:
    """The title of a metric with its arrow; the names themselves if it is not registered."""
    registered = METRICS.get((task, name))
    return f"{task} {name}" if registered is None else registered.title


@metric("classification", "accuracy", "accuracy", of="labels")
def accuracy(labels: ArrayLike, targets: ArrayLike) -> float:
    """Share of the predicted classes (N,) that equal the targets (N,)."""
    labels, targets = _same_length(labels, targets, "labels")
    return float(np.mean(labels == targets))


@metric("classification", "brier", "Brier score", of="probs", lower_is_better=True)
def brier(probs: ArrayLike, targets: ArrayLike) -> float:
    """Brier score: mean of Σ_c (y_c − p_c)², in [0, 2], of probabilities (N, C); times 100 in the paper."""
    probs, targets = _same_length(probs, targets, "probs")
    onehot = np.eye(probs.shape[1])[_indices(targets, probs)]
    return float(np.mean(np.sum((onehot - probs) ** 2, axis=1)))


@metric("classification", "nll", "log loss (NLL)", of="probs", lower_is_better=True)
def nll(probs: ArrayLike, targets: ArrayLike) -> float:
    """Log loss: mean of −ln p_y, with p_y bounded below by the smallest positive normal float."""
    probs, targets = _same_length(probs, targets, "probs")
    of_target = probs[np.arange(len(targets)), _indices(targets, probs)]
    return float(-np.mean(np.log(np.maximum(of_target, np.finfo(float).tiny))))


class Reliability(NamedTuple):
    """A reliability diagram over the K non-empty bins; all (K,)."""

    confidence: Array
    accuracy: Array
    share: Array


def reliability(
    probs: ArrayLike, targets: ArrayLike, labels: ArrayLike | None = None, bins: int = 15
) -> Reliability:
    """Mean confidence max_c p_c, accuracy and share of the samples in equal-width bins of confidence.

    `labels` (N,) are the predicted classes, by default the first largest probability.
    """
    probs, targets = _same_length(probs, targets, "probs")
    confidence = probs.max(1)
    predicted = probs.argmax(1) if labels is None else _same_length(labels, targets, "labels")[0]
    right = (predicted == targets).astype(float)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(which, minlength=bins)
    filled = counts > 0
    confidence, accuracy = (
        np.bincount(which, weights=values, minlength=bins)[filled] / counts[filled]
        for values in (confidence, right)
    )
    return Reliability(confidence, accuracy, counts[filled] / len(which))


@metric("calibration", "ece", "calibration error (ECE)", of="probs", lower_is_better=True)
def ece(
    probs: ArrayLike, targets: ArrayLike, labels: ArrayLike | None = None, bins: int = 15
) -> float:
    """Expected calibration error Σ_k share_k |accuracy_k − confidence_k| over the bins of `reliability`."""
    diagram = reliability(probs, targets, labels, bins)
    return float(np.sum(diagram.share * np.abs(diagram.accuracy - diagram.confidence)))


@metric("ood", "aupr", "AUPR")
def aupr(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> float:
    """Average precision of detecting in-distribution samples (N,) among OOD samples (M,)."""
    from sklearn.metrics import average_precision_score  # noqa: PLC0415 (slow to import)

    truth, certainty = _detection(uncertainty_id, uncertainty_ood)
    return float(average_precision_score(truth, certainty))


@metric("ood", "auroc", "AUROC")
def auroc(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> float:
    """Area under the ROC curve of separating in-distribution samples (N,) from OOD samples (M,)."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (slow to import)

    truth, certainty = _detection(uncertainty_id, uncertainty_ood)
    return float(roc_auc_score(truth, certainty))


@metric("ood", "fpr95", "FPR95", lower_is_better=True)
def fpr_at_95(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> float:
    """False positive rate on OOD samples at a true positive rate of 95% on in-distribution samples."""
    from sklearn.metrics import roc_curve  # noqa: PLC0415 (slow to import)

    truth, certainty = _detection(uncertainty_id, uncertainty_ood)
    false_rate, true_rate, _ = roc_curve(truth, certainty, drop_intermediate=False)
    return float(false_rate[np.argmax(true_rate >= 0.95)])


@metric("misclassification", "aupr", "misclassification AUPR")
def misclassification_aupr(uncertainty: ArrayLike, labels: ArrayLike, targets: ArrayLike) -> float:
    """Average precision of detecting correct predictions (positive) among all by low uncertainty.

    It is 1 if every prediction is correct, and NaN if none is.
    """
    from sklearn.metrics import average_precision_score  # noqa: PLC0415 (slow to import)

    uncertainty, targets = _same_length(uncertainty, targets, "uncertainty")
    labels, _ = _same_length(labels, targets, "labels")
    right = labels == targets
    if not right.any():
        return float("nan")
    return float(average_precision_score(right, -uncertainty))


class RiskCoverage(NamedTuple):
    """Error rate of the k most certain of N predictions, for k = 1 ... N; both (N,)."""

    coverage: Array
    risk: Array


def risk_coverage(uncertainty: ArrayLike, labels: ArrayLike, targets: ArrayLike) -> RiskCoverage:
    """The error rate of accepted predictions as a function of the share that is accepted.

    Errors are averaged over samples with equal uncertainty, so that the curve does not depend on the
    order of the samples.
    """
    uncertainty, targets = _same_length(uncertainty, targets, "uncertainty")
    labels, _ = _same_length(labels, targets, "labels")
    _, group, sizes = np.unique(uncertainty, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=(labels != targets).astype(float))
    spread = np.repeat(errors / sizes, sizes)
    accepted = np.arange(1, len(targets) + 1)
    return RiskCoverage(accepted / len(targets), np.cumsum(spread) / accepted)


@metric("misclassification", "aurc", "risk-coverage area (AURC)", lower_is_better=True)
def aurc(uncertainty: ArrayLike, labels: ArrayLike, targets: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean risk over all coverages."""
    return float(np.mean(risk_coverage(uncertainty, labels, targets).risk))


def _detection(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> tuple[Array, Array]:
    inside, outside = _array(uncertainty_id), _array(uncertainty_ood)
    if inside.size == 0 or outside.size == 0:
        raise ValueError(
            f"{inside.size} in-distribution and {outside.size} OOD scores; expected at least one of "
            "each: pass non-empty datasets"
        )
    certainty = -np.concatenate([inside, outside])
    if not np.isfinite(certainty).all():
        raise ValueError(
            "uncertainties contain NaN or infinity; expected finite scores: check the inputs"
        )
    return np.repeat([1, 0], [inside.size, outside.size]), certainty


def _same_length(values: ArrayLike, targets: ArrayLike, name: str) -> tuple[Array, Array]:
    values, targets = _array(values), _array(targets)
    if len(values) != len(targets) or len(values) == 0:
        raise ValueError(
            f"{len(values)} {name} for {len(targets)} targets; expected one per target, and at least one: "
            "pass predictions and targets of the same samples"
        )
    return values, targets


def _indices(targets: Array, probs: Array) -> NDArray[np.int64]:
    if targets.min() < 0 or targets.max() >= probs.shape[1]:
        raise ValueError(
            f"targets range from {targets.min():g} to {targets.max():g}; expected 0 to "
            f"{probs.shape[1] - 1} for {probs.shape[1]} columns of probabilities: check the class indices"
        )
    return targets.astype(np.int64)


def _array(values: ArrayLike | torch.Tensor) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)
