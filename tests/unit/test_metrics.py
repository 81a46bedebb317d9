"""Metrics compared with scikit-learn and with values computed by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from daedl import metrics

# Certainties of a worked example, negated to give uncertainties.
INSIDE, OUTSIDE = [-0.9, -0.8, -0.4], [-0.7, -0.3]


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4) * 0.5, 300)
    targets = np.array([rng.choice(4, p=p) for p in probs])
    return probs, targets


def test_detection_by_hand():
    assert metrics.aupr(INSIDE, OUTSIDE) == pytest.approx(0.916667, abs=5e-7)
    assert metrics.auroc(INSIDE, OUTSIDE) == pytest.approx(0.833333, abs=5e-7)


def test_a_constant_score_has_chance_precision():
    """27.75 for 10,000 MNIST and 26,032 SVHN images."""
    assert 100 * metrics.aupr(np.zeros(10_000), np.zeros(26_032)) == pytest.approx(27.75, abs=5e-3)


@settings(max_examples=40)
@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    st.lists(st.floats(-5, 5), min_size=1, max_size=30),
)
def test_detection_equals_scikit_learn(inside, outside):
    truth = [1] * len(inside) + [0] * len(outside)
    certainty = [-u for u in inside + outside]
    expected = reference.average_precision_score(truth, certainty)
    assert metrics.aupr(torch.tensor(inside, dtype=torch.float64), outside) == pytest.approx(
        expected
    )
    assert metrics.auroc(inside, outside) == pytest.approx(
        reference.roc_auc_score(truth, certainty)
    )


def test_false_positive_rate_at_95_percent():
    inside = np.arange(100.0)  # 95 of them are at most 94
    assert metrics.fpr_at_95(inside, [94.0, 94.5, 200.0, 300.0]) == pytest.approx(0.25)
    assert metrics.fpr_at_95(inside, [1e3]) == 0


@pytest.mark.parametrize(
    ("value", "metric"), [(0.0392055, metrics.brier), (0.169846, metrics.nll)], ids=["brier", "nll"]
)
def test_softmax_by_hand(value, metric):
    probs = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64).softmax(-1)
    assert metric(probs, [0]) == pytest.approx(value, abs=5e-7)


def test_classification_equals_scikit_learn(case):
    probs, targets = case
    labels = probs.argmax(1)
    assert metrics.accuracy(labels, targets) == reference.accuracy_score(targets, labels)
    assert metrics.nll(probs, targets) == pytest.approx(reference.log_loss(targets, probs))
    each = [reference.brier_score_loss(targets == c, probs[:, c]) for c in range(4)]
    assert metrics.brier(probs, targets) == pytest.approx(sum(each))


def test_misclassification_equals_scikit_learn(case):
    probs, targets = case
    labels, uncertainty = probs.argmax(1), 1 - probs.max(1)
    expected = reference.average_precision_score(labels == targets, probs.max(1))
    assert metrics.misclassification_aupr(uncertainty, labels, targets) == pytest.approx(expected)
    assert metrics.misclassification_aupr([0.1, 0.2], [1, 0], [1, 0]) == 1
    assert math.isnan(metrics.misclassification_aupr([0.1, 0.2], [1, 0], [0, 1]))


def test_calibration_error_by_hand():
    probs = np.array([[0.95, 0.05], [0.85, 0.15], [0.55, 0.45], [0.55, 0.45]])
    targets = np.array([0, 1, 0, 1])
    diagram = metrics.reliability(probs, targets, bins=10)
    assert diagram.confidence.tolist() == pytest.approx([0.55, 0.85, 0.95])
    assert diagram.accuracy.tolist() == pytest.approx([0.5, 0.0, 1.0])
    assert diagram.share.tolist() == pytest.approx([0.5, 0.25, 0.25])
    expected = 0.5 * 0.05 + 0.25 * 0.85 + 0.25 * 0.05
    assert metrics.ece(probs, targets, bins=10) == pytest.approx(expected)


def test_calibrated_probabilities_have_a_small_calibration_error():
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(3), 60_000)
    targets = (probs.cumsum(1) > rng.random((60_000, 1))).argmax(1)
    assert metrics.ece(probs, targets) < 0.01


def test_invalid_input_raises():
    with pytest.raises(ValueError, match="0 in-distribution"):
        metrics.aupr([], [1.0])
    with pytest.raises(ValueError, match="NaN"):
        metrics.auroc([math.nan], [1.0])
    with pytest.raises(ValueError, match="2 labels"):
        metrics.accuracy([0, 1], [0, 1, 2])
    with pytest.raises(ValueError, match="range from -1"):
        metrics.brier([[0.5, 0.5], [0.5, 0.5]], [-1, 1])


def test_labels_resolve_tied_probabilities():
    uniform = np.full((4, 2), 0.5)
    targets = np.array([1, 1, 0, 1])
    assert metrics.reliability(uniform, targets).accuracy.tolist() == [0.25]
    assert metrics.reliability(uniform, targets, labels=targets).accuracy.tolist() == [1.0]


def test_risk_coverage_by_hand():
    curve = metrics.risk_coverage([0.1, 0.4, 0.2, 0.3], [0, 1, 0, 1], [0, 0, 1, 1])
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    area = metrics.aurc([0.1, 0.4, 0.2, 0.3], [0, 1, 0, 1], [0, 0, 1, 1])
    assert area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3]), st.booleans()), min_size=1, max_size=12)
)
def test_risk_coverage_averages_over_the_order_of_ties(samples):
    uncertainty = np.array([u for u, _ in samples])
    wrong = np.array([w for _, w in samples], dtype=int)
    curve = metrics.risk_coverage(uncertainty, wrong, np.zeros(len(wrong)))
    rng = np.random.default_rng(0)
    shuffles = []
    for _ in range(400):
        order = rng.permutation(len(wrong))
        order = order[np.argsort(uncertainty[order], kind="stable")]
        shuffles.append(np.cumsum(wrong[order]) / np.arange(1, len(wrong) + 1))
    np.testing.assert_allclose(curve.risk, np.mean(shuffles, axis=0), atol=0.12)
    assert curve.risk[-1] == pytest.approx(wrong.mean())
