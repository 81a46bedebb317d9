"""Tasks against scikit-learn called directly."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score

from daedl import evaluate as tasks
from daedl.prediction import Prediction


@pytest.fixture
def known() -> Prediction:
    generator = torch.Generator().manual_seed(0)
    return Prediction.from_dirichlet(3 * torch.randn(200, 4, generator=generator))


@pytest.fixture
def others() -> Prediction:
    generator = torch.Generator().manual_seed(1)
    return Prediction.from_dirichlet(2 * torch.randn(90, 4, generator=generator))


def found(measured: list[tasks.Measured]) -> dict[tuple[str, str, str], float]:
    return {each[:3]: each.value for each in measured}


def test_classification_equals_scikit_learn(known: Prediction) -> None:
    targets = torch.randint(4, (200,), generator=torch.Generator().manual_seed(2))
    targets[:150] = known.labels[:150]
    values = found(tasks.classification(known, targets))
    right = (known.labels == targets).numpy()
    assert values["classification", "labels", "accuracy"] == accuracy_score(targets, known.labels)
    brier = np.square(np.eye(4)[targets] - known.probs.double().numpy()).sum(1).mean()
    assert values["classification", "probs", "brier"] == pytest.approx(brier)
    probs = known.probs.double()
    expected = log_loss(targets, (probs / probs.sum(1, keepdim=True)).numpy())
    assert values["classification", "probs", "nll"] == pytest.approx(expected, abs=1e-6)
    certainty = known.probs.max(1).values.double().numpy()
    expected = average_precision_score(right, certainty)
    assert values["misclassification", "aleatoric", "aupr"] == pytest.approx(expected, abs=1e-3)
    expected = average_precision_score(right, known.alpha.double().sum(1).numpy())
    assert values["misclassification", "epistemic", "aupr"] == pytest.approx(expected)


def test_ood_detection_equals_scikit_learn(known: Prediction, others: Prediction) -> None:
    values = found(tasks.ood_detection(known, others))
    truth = np.repeat([1, 0], [200, 90])
    precision = torch.cat([known.alpha, others.alpha]).double().sum(1).numpy()
    assert values["ood", "epistemic", "aupr"] == pytest.approx(
        average_precision_score(truth, precision)
    )
    assert values["ood", "epistemic", "auroc"] == pytest.approx(roc_auc_score(truth, precision))
    certainty = torch.cat([known.probs, others.probs]).double().max(1).values.numpy()
    assert values["ood", "aleatoric", "auroc"] == pytest.approx(roc_auc_score(truth, certainty))
    assert 0 <= values["ood", "aleatoric", "fpr95"] <= 1


def test_a_method_without_an_epistemic_score_has_no_such_figure() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    plain = Prediction.from_probs(probs)
    assert {each.score for each in tasks.ood_detection(plain, plain)} == {"aleatoric"}
