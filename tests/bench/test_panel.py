"""The panel: its data, its figures and its verdict."""

import math

import numpy as np
import pytest
import torch
from made import row

from daedl.prediction import Prediction
from daedl_bench import results
from daedl_bench.spec import catalogue
from daedl_bench.studies.panel import photos, run, tables, verdict
from daedl_bench.studies.panel.measure import METHODS, acceptance, key
from daedl_bench.summary import Results

SEED = 0


@pytest.mark.slow
def test_a_case_is_measured_once_for_every_method(tmp_path):
    path = tmp_path / "panel.jsonl"
    run(path, "wine", ["softmax", "energy"], SEED, None)
    run(path, "wine", METHODS, SEED, None)
    rows = results.load(path)
    run(path, "wine", METHODS, SEED, None)
    assert results.load(path) == rows
    found = verdict.means(results.frame(rows))["wine"]
    assert list(found) == list(METHODS)
    for figures in found.values():
        assert set(figures) == set(verdict.COLUMNS)
        # Equal scores of a network that separates all samples may leave no threshold.
        accepted = {name for name in figures if name.endswith("accepted")}
        assert all(math.isfinite(figures[name]) for name in set(figures) - accepted)
    assert all(map(math.isfinite, found["daedl"].values()))
    tempered = {row.score for row in rows if row.task == "tempering"}
    assert tempered == {"before", "after"}
    # The methods share one network, whose labels they don't change.
    assert found["softmax"]["accuracy"] == found["energy"]["accuracy"] == found["knn"]["accuracy"]
    assert found["softmax"]["near"] != found["energy"]["near"] != found["knn"]["near"]


@pytest.mark.parametrize(
    "build", [tables.two_moons, tables.digits, tables.wine, tables.breast_cancer]
)
def test_parts_of_a_table_are_disjoint_and_have_all_classes(build):
    table = build(SEED)
    parts = (table.train, table.calibration, table.test)
    samples = {tuple(each) for part in parts for each in part.inputs.tolist()}
    assert len(samples) == sum(len(np.unique(part.inputs, axis=0)) for part in parts)
    assert len({len(np.unique(part.targets)) for part in parts}) == 1
    for near in table.near.values():
        assert near.shape[1:] == table.test.inputs.shape[1:]
        assert samples.isdisjoint(map(tuple, near.tolist()))


def test_classes_left_out_are_the_near_samples():
    inputs, targets = np.arange(400.0).reshape(200, 2), np.repeat(np.arange(4), 50)
    table = tables.without_classes(inputs, targets, 3, SEED)
    np.testing.assert_array_equal(table.near["classes left out"], inputs[150:])
    assert table.train.targets.max() == 2


def test_far_samples_are_outside_of_the_data():
    known = np.random.default_rng(SEED).uniform(-1, 1, (500, 2))
    far = tables.far_samples(known, known + 0.5, SEED)
    uniform = far["uniform in a box 3 times as wide"]
    assert (np.abs(uniform) > np.abs(known).max(0)).any(1).all()
    assert 2.9 < np.abs(uniform).max() < 3
    distance = far["10 times as far"] - known.mean(0)
    np.testing.assert_allclose(distance, 10 * (known + 0.5 - known.mean(0)))


def test_far_images():
    test = torch.randint(256, (photos.UNKNOWN, 3, 8, 8)).byte()
    far = photos.far_images(test)
    assert {(each.shape, each.dtype) for each in far.values()} == {(test.shape, torch.uint8)}
    assert (far["flat"].flatten(2).amax(-1) == far["flat"].flatten(2).amin(-1)).all()
    assert len(far["flat"][:, :, 0, 0].unique(dim=0)) > photos.UNKNOWN / 2
    assert (far["inverted"].int() + test.int() == 255).all()


def test_coloured_digits_have_the_strokes_of_the_digits():
    strokes = torch.zeros(photos.UNKNOWN, 1, 8, 8).byte()
    strokes[:, :, 3:5] = 255
    images = photos.coloured(strokes)
    assert images.shape == (photos.UNKNOWN, 3, 8, 8)
    ink, paper = images[:, :, 3:5].flatten(2), images[:, :, 5:].flatten(2)
    assert (ink == ink[:, :, :1]).all()
    assert (paper == paper[:, :, :1]).all()
    assert (ink[:, :, 0] != paper[:, :, 0]).float().mean() > 0.9


def predictions(confidence):
    """Binary predictions of class 0 with these probabilities."""
    return Prediction.from_probs(torch.stack([confidence, 1 - confidence], 1))


def test_acceptance_is_the_share_within_thresholds():
    held_out = predictions(torch.linspace(0.6, 1, 1000))
    accepted = acceptance(held_out, torch.zeros(1000).long())
    assert accepted(held_out) == pytest.approx(0.95, abs=0.002)
    assert accepted(predictions(torch.full((10,), 0.55))) == 0


def test_acceptance_is_undefined_if_no_threshold_can_be_chosen():
    tied = predictions(torch.cat([torch.full((900,), 0.5), torch.linspace(0.6, 1, 100)]))
    assert math.isnan(acceptance(tied, torch.zeros(1000).long())(tied))


def panel_row(metric, value, task="classification", data="test", **fields):
    named = {
        "method": "daedl",
        "experiment": "panel",
        "protocol": "wine",
        "score": "all",
        "seed": 0,
    }
    named |= fields
    spec = key(named["protocol"], named["method"], named["seed"])
    return row(data=data, task=task, metric=metric, value=value, **{"spec": spec, **named})


def load(rows, folder):
    results.append(folder / "panel.jsonl", rows)
    return Results.load(folder, catalogue())


def test_rows_of_former_defaults_are_not_mixed_with_present_ones(tmp_path):
    measured = [
        panel_row("accuracy", 0.9),
        panel_row("accuracy", 0.5, seed=1, spec="former"),
        panel_row("accuracy", 0.5, method="softmax", spec="former"),
    ]
    found = load(measured, tmp_path)
    assert verdict.means(verdict.current(found))["wine"]["daedl"]["accuracy"] == 0.9
    table = verdict.panel(found, {"wine"}, ("daedl", "softmax"))
    assert "| DAEDL | 1 | 90.0 |" in table
    assert "| Softmax | 0 | not measured |" in table
    assert "| wine, 2 classes | not measured |" in verdict.panel_goals(found)


def test_means_over_seeds_use_the_last_row_and_the_worst_far_set(tmp_path):
    measured = [
        panel_row("accuracy", 0.1),
        panel_row("accuracy", 0.8),
        panel_row("accuracy", 0.9, seed=1),
        panel_row("auroc", 0.7, "far", "noise"),
        panel_row("auroc", 0.6, "far", "flat"),
        panel_row("accepted", 0.2, "far", "noise"),
        panel_row("accepted", 0.1, "far", "flat"),
        panel_row("accepted", 0.95, "known"),
        panel_row("accepted", None, "known", seed=1),
    ]
    found = verdict.means(verdict.current(load(measured, tmp_path)))["wine"]["daedl"]
    assert found["accuracy"] == pytest.approx(0.85)
    assert (found["far"], found["far accepted"]) == (0.6, 0.2)
    assert math.isnan(found["known accepted"])


def test_time_is_compared_seed_by_seed():
    seconds = {"daedl": (10.0, 30.0, 3.0), "softmax": (10.0, 10.0, 2.0)}
    measured = [
        panel_row("seconds", value, "cost", "", method=method, seed=seed, score="training")
        for method, values in seconds.items()
        for seed, value in enumerate(values)
    ]
    measured.append(panel_row("seconds", 99.0, "cost", "", seed=3, score="training"))
    assert verdict.time_ratio(results.frame(measured), "wine") == pytest.approx(1.5)


FIGURES = {
    "accuracy": 0.95,
    "ece": 0.02,
    "far accepted": 0.0,
    "known accepted": 0.95,
}


@pytest.mark.parametrize(
    ("changed", "auroc", "missed"),
    [
        ({}, 0.896, []),
        ({"accuracy": 0.946}, 0.9, ["accuracy"]),
        ({"ece": 0.041}, 0.9, ["ECE"]),
        ({"ece": 0.039}, 0.9, []),  # temperature has 0.04
        ({}, 0.894, ["AUROC"]),
        ({"far accepted": 0.06}, 0.9, ["far"]),
        ({"known accepted": 0.98}, 0.9, ["known"]),
        ({"known accepted": math.nan, "far accepted": math.nan}, 0.9, ["far", "known"]),
        ({"ratio": 1.6}, 0.9, ["training"]),
    ],
)
def test_verdict(changed, auroc, missed):
    others = dict.fromkeys(METHODS, FIGURES)
    methods = {**others, "temperature": {**FIGURES, "ece": 0.04}, "daedl": {**FIGURES, **changed}}
    sets = {
        "noise": {"daedl": 0.99, "knn": 0.5},
        "flat": {"daedl": auroc, "knn": 0.9, "energy": 0.8},
    }
    goals = verdict.judge(methods, sets, changed.get("ratio", 1.0))
    assert [title.split()[0].strip(",") for title, goal in goals.items() if not goal.met] == missed


def test_an_accuracy_may_be_a_goal_of_its_own():
    methods, sets = dict.fromkeys(METHODS, FIGURES), {"noise": dict.fromkeys(METHODS, 0.9)}
    assert next(iter(verdict.judge(methods, sets, 1.0, FIGURES["accuracy"]).values())).met
    goal, *_ = verdict.judge(methods, sets, 1.0, 0.96).values()
    assert not goal.met
    assert goal.text.endswith("at least 96")


def test_tempering_shows_the_ood_set_that_loses_most(tmp_path):
    values = {"before": (0.10, 0.2, 0.9, 0.8), "after": (0.02, 0.1, 0.85, 0.81)}
    rows = [
        panel_row(metric, value, "tempering", data, score=score)
        for score, found in values.items()
        for (data, metric), value in zip(
            [
                ("test", "ece"),
                ("test", "brier"),
                ("near", "aleatoric auroc"),
                ("flat", "aleatoric auroc"),
            ],
            found,
            strict=True,
        )
    ]
    table = verdict.panel_tempering(load(rows, tmp_path))
    assert "| 1 | 10.00 → 2.00 | 20.00 → 10.00 | -5.00 on near |" in table
