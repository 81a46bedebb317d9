"""Comparing predictions with the truth: pure functions of arrays or tensors.

Uncertainties are larger where less is known. For detection in-distribution is the positive class, as in
the paper's tables, so that a perfect score is 1.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

Array = NDArray[np.float64]


def accuracy(labels: ArrayLike, targets: ArrayLike) -> float:
    """Share of predicted classes (N,) that equal the true ones (N,)."""
    labels, targets = _same_length(labels, targets, "labels")
    return float(np.mean(labels == targets))


def brier(probs: ArrayLike, targets: ArrayLike) -> float:
    """Mean over samples of Σ_c (y_c − p_c)², in [0, 2], of probabilities (N, C); the paper's times 100."""
    probs, targets = _same_length(probs, targets, "probs")
    onehot = np.eye(probs.shape[1])[_indices(targets, probs)]
    return float(np.mean(np.sum((onehot - probs) ** 2, axis=1)))


def nll(probs: ArrayLike, targets: ArrayLike) -> float:
    """Mean of −ln p_y; a probability of zero counts as the smallest positive float."""
    probs, targets = _same_length(probs, targets, "probs")
    of_truth = probs[np.arange(len(targets)), _indices(targets, probs)]
    return float(-np.mean(np.log(np.maximum(of_truth, np.finfo(float).tiny))))


class Reliability(NamedTuple):
    """A reliability diagram: for each of the K bins that hold samples, all (K,)."""

    confidence: Array
    accuracy: Array
    share: Array


def reliability(
    probs: ArrayLike, targets: ArrayLike, bins: int = 15, labels: ArrayLike | None = None
) -> Reliability:
    """Mean confidence max_c p_c, accuracy and share of samples in equal-width bins of confidence.

    `labels` (N,) are the predicted classes, where probabilities may tie.
    """
    probs, targets = _same_length(probs, targets, "probs")
    confidence = probs.max(1)
    predicted = probs.argmax(1) if labels is None else _same_length(labels, targets, "labels")[0]
    right = (predicted == targets).astype(float)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(which, minlength=bins)
    filled = counts > 0
    sums = [np.bincount(which, weights=w, minlength=bins)[filled] for w in (confidence, right)]
    return Reliability(
        sums[0] / counts[filled], sums[1] / counts[filled], counts[filled] / len(which)
    )


def ece(
    probs: ArrayLike, targets: ArrayLike, bins: int = 15, labels: ArrayLike | None = None
) -> float:
    """Expected calibration error Σ_k share_k |accuracy_k − confidence_k| of `reliability`."""
    diagram = reliability(probs, targets, bins, labels)
    return float(np.sum(diagram.share * np.abs(diagram.accuracy - diagram.confidence)))


def aupr(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> float:
    """Average precision of telling in-distribution samples (N,) from others (M,) by low uncertainty."""
    truth, certainty = _detection(uncertainty_id, uncertainty_ood)
    return float(average_precision_score(truth, certainty))


def auroc(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> float:
    """Area under the ROC curve of telling in-distribution samples (N,) from others (M,)."""
    truth, certainty = _detection(uncertainty_id, uncertainty_ood)
    return float(roc_auc_score(truth, certainty))


def fpr_at_95(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> float:
    """Share of others taken for in-distribution when 95% of the in-distribution samples are."""
    truth, certainty = _detection(uncertainty_id, uncertainty_ood)
    false_rate, true_rate, _ = roc_curve(truth, certainty, drop_intermediate=False)
    return float(false_rate[np.argmax(true_rate >= 0.95)])


def misclassification_aupr(uncertainty: ArrayLike, labels: ArrayLike, targets: ArrayLike) -> float:
    """Average precision of telling right predictions (positive) from wrong ones by low uncertainty.

    It is 1 where no prediction is wrong, and NaN where none is right.
    """
    uncertainty, targets = _same_length(uncertainty, targets, "uncertainty")
    labels, _ = _same_length(labels, targets, "labels")
    right = labels == targets
    if not right.any():
        return float("nan")
    return float(average_precision_score(right, -uncertainty))


class RiskCoverage(NamedTuple):
    """Error among the k most certain of N predictions, for k = 1 ... N; both (N,)."""

    coverage: Array
    risk: Array


def risk_coverage(uncertainty: ArrayLike, labels: ArrayLike, targets: ArrayLike) -> RiskCoverage:
    """The error that remains if only the most certain share of predictions is accepted.

    Equal uncertainties are accepted or not together: their errors are spread over them evenly, so
    that the curve does not depend on the order of the samples.
    """
    uncertainty, targets = _same_length(uncertainty, targets, "uncertainty")
    labels, _ = _same_length(labels, targets, "labels")
    _, group, sizes = np.unique(uncertainty, return_inverse=True, return_counts=True)
    errors = np.bincount(group, weights=(labels != targets).astype(float))
    spread = np.repeat(errors / sizes, sizes)
    accepted = np.arange(1, len(targets) + 1)
    return RiskCoverage(accepted / len(targets), np.cumsum(spread) / accepted)


def aurc(uncertainty: ArrayLike, labels: ArrayLike, targets: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean risk over all coverages; smaller is better."""
    return float(np.mean(risk_coverage(uncertainty, labels, targets).risk))


def _detection(uncertainty_id: ArrayLike, uncertainty_ood: ArrayLike) -> tuple[Array, Array]:
    inside, outside = _array(uncertainty_id), _array(uncertainty_ood)
    if inside.size == 0 or outside.size == 0:
        raise ValueError(
            f"{inside.size} in-distribution and {outside.size} other scores; expected at least one each"
        )
    certainty = -np.concatenate([inside, outside])
    if not np.isfinite(certainty).all():
        raise ValueError("uncertainties hold NaN or infinity; expected finite scores")
    return np.repeat([1, 0], [inside.size, outside.size]), certainty


def _same_length(values: ArrayLike, targets: ArrayLike, name: str) -> tuple[Array, Array]:
    values, targets = _array(values), _array(targets)
    if len(values) != len(targets) or len(values) == 0:
        raise ValueError(
            f"{len(values)} {name} for {len(targets)} targets; expected one for each, at least one"
        )
    return values, targets


def _indices(targets: Array, probs: Array) -> NDArray[np.int64]:
    if targets.min() < 0 or targets.max() >= probs.shape[1]:
        raise ValueError(
            f"targets range from {targets.min():g} to {targets.max():g}; expected 0 to "
            f"{probs.shape[1] - 1}, as there are {probs.shape[1]} columns of probabilities"
        )
    return targets.astype(np.int64)


def _array(values: ArrayLike | torch.Tensor) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)
