"""The digits table: spreads, leads and the conclusion."""

from statistics import mean, stdev

import pytest

from daedl.demo import table
from daedl.evaluate import Measured


def seed(accuracy: float, brier: float = 0.1, auroc: float = 0.9) -> dict[str, list[Measured]]:
    """Figures of one method and seed."""
    return {
        "test": [
            Measured("classification", "labels", "accuracy", accuracy),
            Measured("classification", "probs", "brier", brier),
            Measured("calibration", "probs", "ece", 0.1),
        ],
        "unknown": [Measured("ood", "aleatoric", "auroc", auroc)],
        "noise": [Measured("ood", "aleatoric", "auroc", 0.9)],
    }


def lines(a: list[float], b: list[float], c: list[float]) -> list[table.Line]:
    """Lines of three methods with these accuracies, one per seed."""
    return table.summarize(
        [
            {"softmax": seed(x), "edl": seed(y), "daedl": seed(z)}
            for x, y, z in zip(a, b, c, strict=True)
        ]
    )


def test_cells_are_mean_and_sample_deviation() -> None:
    values = [0.91, 0.95, 0.96]
    line = lines(values, [0.5, 0.5, 0.5], [0.5, 0.5, 0.5])[0]
    assert line.spreads["Softmax"] == pytest.approx((mean(values), stdev(values)))
    assert str(line.spreads["Softmax"]) == "94.0 ± 2.6"


def test_leads_are_paired_by_seed() -> None:
    # The spread over seeds is ten times the difference, which is the same for every seed.
    line = lines([0.5, 0.6, 0.7], [0.49, 0.59, 0.69], [0.48, 0.58, 0.68])[0]
    assert line.leader == "Softmax"
    assert line.leads["EDL"] == pytest.approx((0.01, 0.0), abs=1e-9)
    assert line.verdict == "Softmax clearly leads"


@pytest.mark.parametrize(
    ("edl", "daedl", "expected"),
    [
        ([0.5, 0.5], [0.6, 0.6], "DAEDL clearly leads"),
        ([0.5, 0.68], [0.6, 0.6], "DAEDL clearly leads Softmax but not EDL"),
        ([0.5, 0.7], [0.6, 0.4], "no method clearly leads"),
    ],
)
def test_lead_is_clear_above_two_deviations(
    edl: list[float], daedl: list[float], expected: str
) -> None:
    assert lines([0.5, 0.5], edl, daedl)[0].verdict == expected


def test_smaller_brier_score_leads() -> None:
    runs = [{"softmax": seed(0.9, brier=0.2), "edl": seed(0.9, brier=0.1)}] * 2
    line = table.summarize(runs)[1]
    assert line.leader == "EDL"
    assert line.leads["Softmax"].mean == pytest.approx(0.1)


def test_epistemic_score_is_compared_where_a_method_has_it() -> None:
    both = seed(0.9, auroc=0.1)
    both["unknown"].append(Measured("ood", "epistemic", "auroc", 0.95))
    line = table.summarize([{"softmax": seed(0.9, auroc=0.8), "daedl": both}] * 2)[3]
    assert line.spreads["Softmax"].mean == pytest.approx(0.8)
    assert line.spreads["DAEDL"].mean == pytest.approx(0.95)


def test_conclusion_groups_questions_by_verdict() -> None:
    conclusion = table.conclude(lines([0.5, 0.5], [0.5, 0.5], [0.6, 0.6]))
    assert conclusion == (
        "DAEDL clearly leads in predicting classes; no method clearly leads in probabilities, "
        "calibration, detecting digits 8 and 9 and detecting uniform noise."
    )
