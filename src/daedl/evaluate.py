"""Evaluation tasks: predictions in, named metrics out.

A task defines what its metrics are called with; the metrics themselves are registered in `daedl.metrics`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torch import Tensor

from daedl import metrics
from daedl.predicted import Predicted
from daedl.prediction import Prediction

Made = TypeVar("Made", bound=Predicted)  # the predictions of a task, of classes or of numbers
# What predictions are compared with: targets (N,), or predictions for OOD samples.
Reference = TypeVar("Reference", Tensor, Prediction)


class Measured(NamedTuple):
    """One value: `score` is the uncertainty score that is evaluated, or "probs" or "labels"."""

    task: str
    score: str
    metric: str
    value: float


class Task(ABC, Generic[Made, Reference]):
    """A question about predictions, which every metric registered for its name answers."""

    name: ClassVar[str]

    @abstractmethod
    def arguments(self, prediction: Made, reference: Reference) -> Mapping[str, tuple[Any, ...]]:
        """The arguments of the metrics, by the score that they evaluate."""

    def measure(self, prediction: Made, reference: Reference) -> list[Measured]:
        """Every metric of the task for each score."""
        return [
            Measured(self.name, score, metric.name, metric.compute(*arguments))
            for score, arguments in self.arguments(prediction, reference).items()
            for (task, _), metric in metrics.METRICS.items()
            if task == self.name and metric.of in (None, score)
        ]


class Classification(Task[Prediction, Tensor]):
    """Are the predicted classes correct, and the probabilities accurate?"""

    name = "classification"

    def arguments(
        self, prediction: Prediction, reference: Tensor
    ) -> Mapping[str, tuple[Tensor, ...]]:
        """labels and targets, or probs and targets."""
        return {"labels": (prediction.labels, reference), "probs": (prediction.probs, reference)}


class Calibration(Task[Prediction, Tensor]):
    """Does the confidence equal the accuracy?"""

    name = "calibration"

    def arguments(
        self, prediction: Prediction, reference: Tensor
    ) -> Mapping[str, tuple[Tensor, ...]]:
        """probs, targets, labels."""
        return {"probs": (prediction.probs, reference, prediction.labels)}


class Misclassification(Task[Prediction, Tensor]):
    """Is the uncertainty larger for wrong predictions than for correct ones?"""

    name = "misclassification"

    def arguments(
        self, prediction: Prediction, reference: Tensor
    ) -> Mapping[str, tuple[Tensor, ...]]:
        """uncertainty, labels, targets."""
        scores = prediction.scores()
        return {name: (each, prediction.labels, reference) for name, each in scores.items()}


class OODDetection(Task[Prediction, Prediction]):
    """Is the uncertainty larger for OOD samples than for in-distribution samples?"""

    name = "ood"

    def arguments(
        self, prediction: Prediction, reference: Prediction
    ) -> Mapping[str, tuple[Tensor, ...]]:
        """uncertainty of in-distribution samples (N,), uncertainty of OOD samples (M,)."""
        ood = reference.scores()
        return {name: (each, ood[name]) for name, each in prediction.scores().items()}


# The tasks on labelled in-distribution data, in the order of tables.
LABELLED: tuple[Task[Prediction, Tensor], ...] = (
    Classification(),
    Calibration(),
    Misclassification(),
)


def classification(prediction: Prediction, targets: Tensor) -> list[Measured]:
    """Evaluate predictions for N in-distribution samples with targets (N,) by all tasks of `LABELLED`."""
    return [each for task in LABELLED for each in task.measure(prediction, targets)]


def ood_detection(inside: Prediction, outside: Prediction, task: str = "ood") -> list[Measured]:
    """Evaluate how well each uncertainty score separates N in-distribution from M OOD samples.

    `task` is its name in the results: "shift" if the OOD samples are corrupted in-distribution samples.
    """
    return [each._replace(task=task) for each in OODDetection().measure(inside, outside)]


def acceptance(prediction: Prediction) -> list[Measured]:
    """The share of predictions within the thresholds, if there are any."""
    if prediction.thresholds is None:
        return []
    return [Measured("share", "labels", "accepted", float(prediction.accept.double().mean()))]


def averaged(measured: Sequence[Sequence[Measured]]) -> list[Measured]:
    """The mean of each value over several datasets with the same tasks, scores and metrics."""
    return [
        same[0]._replace(value=fmean(each.value for each in same))
        for same in zip(*measured, strict=True)
    ]
