"""Tasks compared with direct calls of scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score

from daedl import evaluate, metrics
from daedl.prediction import Prediction


@pytest.fixture
def inside() -> Prediction:
    generator = torch.Generator().manual_seed(0)
    return Prediction.from_dirichlet(3 * torch.randn(200, 4, generator=generator))


@pytest.fixture
def outside() -> Prediction:
    generator = torch.Generator().manual_seed(1)
    return Prediction.from_dirichlet(2 * torch.randn(90, 4, generator=generator))


@pytest.fixture
def targets(inside: Prediction) -> torch.Tensor:
    targets = torch.randint(4, (200,), generator=torch.Generator().manual_seed(2))
    targets[:150] = inside.labels[:150]
    return targets


def by_name(measured: list[evaluate.Measured]) -> dict[tuple[str, str, str], float]:
    return {each[:3]: each.value for each in measured}


def test_classification_equals_scikit_learn(inside: Prediction, targets: torch.Tensor) -> None:
    values = by_name(evaluate.classification(inside, targets))
    correct = (inside.labels == targets).numpy()
    assert values["classification", "labels", "accuracy"] == accuracy_score(targets, inside.labels)
    brier = np.square(np.eye(4)[targets] - inside.probs.double().numpy()).sum(1).mean()
    assert values["classification", "probs", "brier"] == pytest.approx(brier)
    probs = inside.probs.double()
    expected = log_loss(targets, (probs / probs.sum(1, keepdim=True)).numpy())
    assert values["classification", "probs", "nll"] == pytest.approx(expected, abs=1e-6)
    certainty = inside.probs.max(1).values.double().numpy()
    expected = average_precision_score(correct, certainty)
    assert values["misclassification", "aleatoric", "aupr"] == pytest.approx(expected, abs=1e-3)
    expected = average_precision_score(correct, inside.alpha.double().sum(1).numpy())
    assert values["misclassification", "epistemic", "aupr"] == pytest.approx(expected)


def test_ood_detection_equals_scikit_learn(inside: Prediction, outside: Prediction) -> None:
    values = by_name(evaluate.ood_detection(inside, outside))
    truth = np.repeat([1, 0], [200, 90])
    precision = torch.cat([inside.alpha, outside.alpha]).double().sum(1).numpy()
    assert values["ood", "epistemic", "aupr"] == pytest.approx(
        average_precision_score(truth, precision)
    )
    assert values["ood", "epistemic", "auroc"] == pytest.approx(roc_auc_score(truth, precision))
    certainty = torch.cat([inside.probs, outside.probs]).double().max(1).values.numpy()
    assert values["ood", "aleatoric", "auroc"] == pytest.approx(roc_auc_score(truth, certainty))
    assert 0 <= values["ood", "aleatoric", "fpr95"] <= 1


def test_names_in_results_are_stable(
    inside: Prediction, outside: Prediction, targets: torch.Tensor
) -> None:
    """Stored results are identified by these names, in this order."""
    assert [each[:3] for each in evaluate.classification(inside, targets)] == [
        ("classification", "labels", "accuracy"),
        ("classification", "probs", "brier"),
        ("classification", "probs", "nll"),
        ("calibration", "probs", "ece"),
        *(
            ("misclassification", score, metric)
            for score in ("aleatoric", "epistemic")
            for metric in ("aupr", "aurc")
        ),
    ]
    assert [each[:3] for each in evaluate.ood_detection(inside, outside, task="shift")] == [
        ("shift", score, metric)
        for score in ("aleatoric", "epistemic")
        for metric in ("aupr", "auroc", "fpr95")
    ]


def test_calibration_uses_predicted_labels() -> None:
    """Where probabilities tie, the predicted label is not necessarily the first class."""
    labels = torch.tensor([1, 1, 0, 1])
    prediction = Prediction(torch.full((4, 2), 0.5), labels, aleatoric=torch.full((4,), 0.5))
    values = by_name(evaluate.classification(prediction, labels))
    assert values["calibration", "probs", "ece"] == pytest.approx(0.5)


def test_scores_that_a_method_lacks_are_not_measured() -> None:
    plain = Prediction.from_probs(torch.tensor([[0.9, 0.1], [0.6, 0.4]]))
    assert {each.score for each in evaluate.ood_detection(plain, plain)} == {"aleatoric"}


def test_averaged_is_the_mean_over_datasets() -> None:
    first, second = (evaluate.Measured("ood", "epistemic", "aupr", value) for value in (0.2, 0.6))
    (mean,) = evaluate.averaged([[first], [second]])
    assert mean == ("ood", "epistemic", "aupr", pytest.approx(0.4))


class TestRegistration:
    @pytest.fixture(autouse=True)
    def registry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))

    def test_a_registered_metric_is_measured(
        self, inside: Prediction, targets: torch.Tensor
    ) -> None:
        @metrics.metric("classification", "error", "error", of="labels", lower_is_better=True)
        def error(labels: torch.Tensor, targets: torch.Tensor) -> float:
            return float((labels != targets).double().mean())

        values = by_name(evaluate.classification(inside, targets))
        accuracy = values["classification", "labels", "accuracy"]
        assert values["classification", "labels", "error"] == pytest.approx(1 - accuracy)
        assert metrics.title("classification", "error") == "error ↓"

    def test_a_metric_of_every_score(self, inside: Prediction, outside: Prediction) -> None:
        @metrics.metric("ood", "gap", "gap")
        def gap(inside: torch.Tensor, outside: torch.Tensor) -> float:
            return float(outside.mean() - inside.mean())

        measured = evaluate.ood_detection(inside, outside)
        assert [each.score for each in measured if each.metric == "gap"] == list(inside.scores())

    def test_names_are_unique_within_a_task(self) -> None:
        with pytest.raises(ValueError, match="'aupr'"):
            metrics.metric("ood", "aupr", "AUPR")

    def test_unregistered_metrics_have_a_title(self) -> None:
        assert metrics.title("ood", "new") == "ood new"
        assert metrics.title("ood", "fpr95") == "FPR95 ↓"
