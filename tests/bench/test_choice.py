"""Which method to take: kinds, leaders and costs, from made rows."""

from dataclasses import replace

import pytest
from made import row

from daedl.methods import build
from daedl_bench.comparison import choice, drawing, page
from daedl_bench.comparison.measured import Measurements
from daedl_bench.spec import catalogue

CATALOGUE = catalogue()
# AUPR on KMNIST, ECE and the cost of a prediction.
FIGURES = {
    "softmax": (0.990, 0.004, 1.0),
    "energy": (0.991, 0.004, 1.0),
    "daedl": (0.999, 0.110, 1.5),
    "i-edl": (0.980, 0.050, 1.1),
    "dropout": (0.985, 0.003, 10.0),
}


def made(figures=FIGURES, seeds=2, spread=0.0001):
    found = []
    for method, (aupr, ece, cost) in figures.items():
        score = "aleatoric" if method == "softmax" else "epistemic"
        for seed in range(seeds):
            step = spread * (seed - 0.5)
            found += [
                row(method, "mnist", "classification", "labels", "accuracy", 0.99 + step, seed),
                row(method, "mnist", "calibration", "probs", "ece", ece + step, seed),
                row(method, "kmnist", "ood", score, "aupr", aupr + step, seed),
                # The other score, where there is one; of softmax, another metric.
                row(method, "kmnist", "ood", "aleatoric", "aupr", 0.5, seed)
                if score == "epistemic"
                else row(method, "kmnist", "ood", "aleatoric", "auroc", 0.5, seed),
                row(method, "mnist", "cost", "training", "epochs", 5 + seed, seed),
            ]
        found += [
            row(method, "cost", "cost", "prediction", "relative", cost),
            row(method, "cost", "cost", "step", "relative", 2.0),
        ]
    return Measurements(CATALOGUE, tuple(found))


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("softmax", choice.POST_HOC),
        ("knn", choice.POST_HOC),
        ("temperature", choice.POST_HOC),
        ("daedl", choice.OWN),
        ("postnet", choice.OWN),
        ("dropout", choice.SEVERAL),
        ("ensemble", choice.SEVERAL),
    ],
)
def test_kinds(method, kind):
    assert choice.kind(build(method)) == kind


def whole(found, place):
    """Lines of the section with this number: costs, then gains."""
    costs, gains = (dict(sheet.sections[place].lines) for sheet in (found.costs, found.gains))
    assert list(costs) == list(gains)
    return {name: costs[name] + gains[name] for name in costs}


def test_costs_and_gains_by_kind_with_the_best_marked():
    (found,) = choice.choices(made())
    assert found.title == "MNIST, quick protocol"
    sections = {
        section.heading: whole(found, place) for place, section in enumerate(found.costs.sections)
    }
    assert list(sections) == [choice.POST_HOC, choice.OWN, choice.SEVERAL]
    assert list(sections[choice.POST_HOC]) == ["Energy (2)", "Softmax (2)"]
    assert list(sections[choice.OWN]) == ["DAEDL (2)", "I-EDL (2)"]
    daedl = sections[choice.OWN]["DAEDL (2)"]
    columns = (*found.costs.columns, *found.gains.columns)
    headings = [" ".join(each).strip() for each in columns]
    assert dict(zip(headings, daedl, strict=True)) == {
        "extra data": "none",
        "× softmax step": "2.0",
        "epochs": "6",
        "fit, seconds afterwards": "–",
        "× softmax prediction": "1.5",
        "accuracy ↑": "99.00 ± 0.01 ★",
        "ECE ↓": "11.00 ± 0.01",
        "near: KMNIST AUPR ↑": "50.00 ± 0.00 / 99.90 ± 0.01 ★",
        "far: Fashion-MNIST AUPR ↑": "not run",
        "shift: MNIST-C AUPR ↑": "not run",
    }
    near = headings.index("near: KMNIST AUPR ↑")
    assert sections[choice.POST_HOC]["Softmax (2)"][near] == "99.00 ± 0.01 / –"
    assert sections[choice.SEVERAL]["Dropout (2)"][headings.index("ECE ↓")] == "0.30 ± 0.01 ★"


def test_extra_data_are_told():
    more = made(FIGURES | {"kl-pn": (0.99, 0.1, 1.0), "adats": (0.98, 0.1, 1.0)})
    (found,) = choice.choices(more)
    cells = {name: line[0] for each in found.costs.sections for name, line in each.lines}
    assert cells["KL-PN (2)"] == "noise"
    assert cells["AdaTS (2)"] == "held-out"


def test_the_answer_names_what_methods_of_a_kind_are_best_for():
    """Not accuracy, by which all are the same, nor what both of two methods lead by."""
    (found,) = choice.choices(made())
    assert found.answers == (
        f"{choice.POST_HOC}. Energy for near unknown images.",
        f"{choice.OWN}. DAEDL for near unknown images; I-EDL for calibration.",
        f"{choice.SEVERAL}. Dropout for accuracy, calibration and near unknown images.",
    )
    for text in (
        page.markdown(page.gather(made(), [], [])),
        page.html(page.gather(made(), [], [])),
    ):
        assert found.answers[1] in text


def test_either_score_may_lead():
    others = [each for each in made().found if (each.method, each.score) != ("i-edl", "aleatoric")]
    better = [row("i-edl", "kmnist", "ood", "aleatoric", "aupr", 0.9995, s) for s in range(2)]
    (found,) = choice.choices(Measurements(CATALOGUE, (*others, *better)))
    assert dict(found.leaders.sections[0].lines)["near: KMNIST, AUPR ↑"][1] == "I-EDL"


def test_leaders_of_each_kind():
    (found,) = choice.choices(made())
    assert [" ".join(each).strip() for each in found.leaders.columns] == [
        "nothing is trained again",
        "its own training, one pass",
        "several passes",
        "any",
    ]
    lines = dict(found.leaders.sections[0].lines)
    assert lines["near: KMNIST, AUPR ↑"] == ("Energy", "DAEDL", "Dropout", "DAEDL")
    assert lines["ECE ↓"] == ("Energy, Softmax", "I-EDL", "Dropout", "Dropout")
    # All have the same accuracy.
    everybody = {"Softmax", "Energy", "DAEDL", "I-EDL", "Dropout"}
    assert set(lines["accuracy ↑"][3].split(", ")) == everybody
    assert lines["shift: MNIST-C, AUPR ↑"] == ("not run",) * 4


def test_what_differs_by_less_than_the_deviation_leads_together():
    (found,) = choice.choices(made(FIGURES | {"energy": (0.9988, 0.1, 1.0)}, spread=0.001))
    lines = dict(found.leaders.sections[0].lines)
    assert lines["near: KMNIST, AUPR ↑"][3] == "DAEDL, Energy"


def test_a_figure_that_varies_much_does_not_lead_before_a_better_one_that_varies_little():
    """The worse of two may lie within its own, wide deviation of the best."""
    values = {"knn": (0.9989, 0.9991), "postnet": (0.9979, 0.9981), "rkl-pn": (0.995, 1.0)}
    more = [
        each
        for label, pair in values.items()
        for seed, value in enumerate(pair)
        for each in (
            row(label, "mnist", "classification", "labels", "accuracy", 0.99, seed),
            row(label, "fashion-mnist", "ood", "epistemic", "aupr", value, seed),
        )
    ]
    (found,) = choice.choices(Measurements(CATALOGUE, made().found + tuple(more)))
    lines = dict(found.leaders.sections[0].lines)
    assert lines["far: Fashion-MNIST, AUPR ↑"][3] == "kNN distance"


def test_a_single_seed_does_not_lead_where_others_have_more():
    lucky = [
        row("knn", "mnist", "classification", "labels", "accuracy", 0.995),
        row("knn", "kmnist", "ood", "epistemic", "aupr", 0.9999),
    ]
    (found,) = choice.choices(Measurements(CATALOGUE, made().found + tuple(lucky)))
    lines = dict(found.leaders.sections[0].lines)
    assert lines["near: KMNIST, AUPR ↑"][3] == "DAEDL"
    assert "kNN distance" not in lines["accuracy ↑"][0]
    (alone,) = choice.choices(made(seeds=1))
    assert dict(alone.leaders.sections[0].lines)["near: KMNIST, AUPR ↑"][3] == "DAEDL"


def test_numbers_of_seeds_that_differ_stand_behind_each_figure():
    more = row("daedl", "mnist", "classification", "labels", "accuracy", 0.99, seed=2)
    (found,) = choice.choices(Measurements(CATALOGUE, (*made().found, more)))
    lines = whole(found, 1)
    assert lines["DAEDL"][4:6] == ("1.5", "99.00 ± 0.00 (3) ★")
    assert lines["DAEDL"][7] == "50.00 ± 0.00 (2) / 99.90 ± 0.01 (2) ★"


def test_the_picture_has_a_line_a_method_the_best_on_top():
    (found,) = choice.choices(made())
    assert list(found.detection) == ["daedl", "energy", "softmax", "dropout", "i-edl"]
    (axes,) = drawing.missing_dots(found.detection).axes
    assert axes.get_yticklabels()[0].get_text() == "DAEDL"
    (dots,) = axes.lines
    assert dots.get_xdata() == pytest.approx([0.1, 0.9, 1.0, 1.5, 2.0])
    assert axes.yaxis_inverted()


def test_few_methods_leave_no_choice():
    few = {name: FIGURES[name] for name in ("softmax", "daedl", "i-edl")}
    assert choice.choices(made(few)) == []


def test_parts_of_an_ablation_are_not_to_be_chosen():
    rows = made().found + tuple(
        row("exp+sn", "mnist", "classification", "labels", "accuracy", 0.999, seed)
        for seed in range(2)
    )
    (found,) = choice.choices(Measurements(CATALOGUE, rows))
    assert "exp+sn" not in found.detection


def test_of_several_protocols_the_one_with_most_methods_answers():
    quick, brief = ("mnist-quick", "mnist-brief")
    few = {label: FIGURES[label] for label in ("softmax", "energy", "daedl", "i-edl")}
    under = {
        name: tuple(replace(row, protocol=name) for row in made(figures).found)
        for name, figures in ((quick, few), (brief, FIGURES))
    }
    (found,) = choice.choices(Measurements(CATALOGUE, under[quick] + under[brief]))
    assert found.protocol == brief
    as_many = tuple(replace(row, protocol=quick) for row in under[brief])
    (found,) = choice.choices(Measurements(CATALOGUE, as_many + under[brief]))
    assert found.protocol == quick  # the catalogue's first


def test_both_forms_of_the_report_show_it():
    content = page.gather(made(), [], [])
    for text in (page.markdown(content), page.html(content)):
        assert "Which method should I take?" in text
        assert choice.POST_HOC in text
        assert "99.90 ± 0.01 ★" in text
    assert "| by | nothing is trained again | its own training, one pass |" in page.markdown(
        content
    )
    assert "choice-mnist-quick.png" in page.markdown(content)
