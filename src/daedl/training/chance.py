"""Detection of trainings that did not learn: validation accuracy at chance level."""

import math

import torch
from torch import Tensor

# Share of the way from chance to all correct below which nothing useful was learned, Cohen's kappa (chosen:
# 1.3% accuracy with 150 classes, a kappa of 0.006, is distinguishable from chance but a failure).
MIN_KAPPA = 0.05


class ChanceWarning(UserWarning):
    """The validation accuracy after training is at chance level."""


def confusion_margins(predicted: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Returns the number of samples per class by prediction and by target (2, C), float64."""
    counts = (torch.bincount(each.cpu(), minlength=num_classes) for each in (predicted, targets))
    return torch.stack(list(counts)).double()


def chance_level(margins: Tensor) -> float | None:
    """Returns the accuracy up to which predictions are no better than chance; None for one class of targets.

    On targets of one class, a network that always predicts it is as accurate as one that has learned.

    Predictions independent of the labels are correct with probability p = Σ_c P(predicted c) P(target c):
    1/C if uniform, the majority share if constant. Returns p plus `MIN_KAPPA` of the remaining 1 − p or, for
    few samples, one binomial standard deviation.
    """
    if int((margins[1] > 0).sum()) < 2:
        return None
    number = float(margins[1].sum())
    chance = float((margins[0] * margins[1]).sum()) / number**2
    return chance + max(MIN_KAPPA * (1 - chance), math.sqrt(chance * (1 - chance) / number))


def chance_advice(accuracy: float, level: float) -> str:
    """Returns the text of the warning."""
    return (
        f"validation accuracy is {accuracy:.1%}; expected more than {level:.1%}, which predictions without "
        "regard to the input can reach: the network has not learned. Check that labels belong to inputs; "
        "train for more epochs, or with another learning rate; if method='softmax' learns on the same data, "
        "lower the method's kl_weight, or use a larger spectral coefficient or spectral=None"
    )
