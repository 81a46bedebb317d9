"""Answers: predictions as JSON-able records, and what a model says of itself."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from daedl.classifier import Classifier
from daedl.density import DensityScorer
from daedl.prediction import Prediction
from daedl.serving.batcher import Answer
from daedl.serving.inputs import Inputs
from daedl.spectral import remove_spectral_norm

# The largest exponent whose exponential is a float64.
MAX_EXPONENT = 709.0


class Predictor:
    """A classifier that answers in records. It is a copy, whose normalised weights are computed once.

    Arguments:
        model: must be fitted, if its method fits anything; a first prediction shows it.
    """

    def __init__(self, model: Classifier) -> None:
        self.model = copy.deepcopy(model).eval()
        remove_spectral_norm(self.model.network)
        self.inputs = Inputs.of(model)
        numbers = [str(number) for number in range(model.network.num_classes)]
        self.names = model.class_names or numbers
        self.first = self.model.predict(torch.zeros(1, *self.inputs.shape, dtype=self.inputs.dtype))

    @property
    def density_reference(self) -> float | None:
        """The mean density score of training images as if they were new, if the model file holds it."""
        fitted = self.model.fitted
        return fitted.reference if isinstance(fitted, DensityScorer) else None

    def __call__(self, images: Tensor) -> list[Answer]:
        """One answer for each of `images` (N, *shape)."""
        return to_answers(self.model.predict(images), self.names)

    def description(self) -> dict[str, Any]:
        """What the model is, takes and gives; JSON-able."""
        thresholds = self.model.thresholds
        return {
            "method": self.model.method.name,
            "network": type(self.model.network.plain).__name__,
            "classes": self.names,
            "input_shape": list(self.inputs.shape),
            "takes_images": self.inputs.are_images,
            "gives_evidence": self.first.log_alpha is not None,
            "gives_density": self.first.density_score is not None,
            "density_reference": self.density_reference,
            "limits": None if thresholds is None else dict(thresholds.limits),
            "thresholds": None if thresholds is None else str(thresholds),
        }


def to_answers(prediction: Prediction, names: list[str]) -> list[Answer]:
    """One record for each of B predictions.

    What the method doesn't give is None, as are `accept` and `reason` of a model without thresholds.
    `evidence` is α₀, the sum of the concentrations; as many as there are classes mean none.
    """
    probabilities = prediction.probs.tolist()
    labels = prediction.labels.tolist()
    columns = {
        "aleatoric": prediction.aleatoric,
        "epistemic": prediction.epistemic,
        "evidence": _evidence(prediction),
        "density_score": prediction.density_score,
        "log_density": prediction.log_density,
        "accept": None if prediction.thresholds is None else prediction.accept,
    }
    lists = {name: _listed(values, len(labels)) for name, values in columns.items()}
    reasons = [None] * len(labels) if prediction.thresholds is None else prediction.reason
    return [
        {
            "label": names[label],
            "index": label,
            "probability": probabilities[i][label],
            "probabilities": dict(zip(names, probabilities[i], strict=True)),
            "uncertainties": {name: lists[name][i] for name in ("aleatoric", "epistemic")},
            "evidence": lists["evidence"][i],
            "density_score": lists["density_score"][i],
            "log_density": lists["log_density"][i],
            "accept": lists["accept"][i],
            "reason": reasons[i],
        }
        for i, label in enumerate(labels)
    ]


def _evidence(prediction: Prediction) -> Tensor | None:
    """α₀ (B,), float64, if there is a Dirichlet."""
    if prediction.log_alpha is None:
        return None
    return prediction.dirichlet.log_precision.double().clamp_max(MAX_EXPONENT).exp()


def _listed(values: Tensor | None, number: int) -> list[Any]:
    """The values, None where there are none or where they are no numbers that JSON knows."""
    if values is None:
        return [None] * number
    return [value if math.isfinite(value) else None for value in values.tolist()]
