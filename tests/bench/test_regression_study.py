"""The regression study on made sets: which rows a training sees, the order of work, and the tables."""

from importlib import import_module

import numpy as np
import pytest
import torch
from made import row

from daedl.methods import regression
from daedl_bench.spec import catalogue
from daedl_bench.studies.regression import ORDER, data, tables
from daedl_bench.summary import Results

# The package has functions of the same names.
measuring = import_module("daedl_bench.studies.regression.measure")
training = import_module("daedl_bench.studies.regression.training")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two small sets with one split each, and short trainings."""
    rng = np.random.default_rng(0)
    for name in ("yacht", "boston"):
        folder = tmp_path / "uci" / data.SETS[name]
        folder.mkdir(parents=True)
        rows = rng.normal(size=(160, 4))
        np.savetxt(folder / "data.txt", rows)
        np.savetxt(folder / "index_features.txt", [0, 1, 2])
        np.savetxt(folder / "index_target.txt", [3])
        np.savetxt(folder / "index_train_0.txt", range(140))
        np.savetxt(folder / "index_test_0.txt", range(140, 160))
    short = training.Candidate(8, 0.1, 0.01), training.Candidate(12, 0.01, 0.03)
    monkeypatch.setattr(training, "CANDIDATES", short)
    return measuring.Split(tmp_path, "yacht", 0)


def rows_of(part):
    return set(map(tuple, part.features.tolist()))


def test_what_is_held_out_is_not_selected_on(place, monkeypatch):
    """Parts of one split: the arguments of every selection of a whole measurement."""
    train, test = data.split(*place)
    selected = []

    def spy(part, *others):
        selected.append(part)
        return training.select(part, *others)

    monkeypatch.setattr(measuring, "select", spy)
    figures = list(measuring.measure(place, "gaussian"))
    whole, conformal, inside = selected
    assert rows_of(whole) == rows_of(train)
    assert {each.task for each in figures} >= {"regression", "extrapolation", "foreign", "noise"}

    fitting, calibration = measuring.calibration_part(train, place.number)
    assert rows_of(conformal) == rows_of(fitting)
    assert not rows_of(fitting) & rows_of(calibration)
    assert rows_of(fitting) | rows_of(calibration) == rows_of(train)
    # Not the part on which the selection of the whole training part validates.
    assert rows_of(calibration) != rows_of(data.validation(train, place.number)[1])

    fitting, known, outside = measuring.outside_parts(train, test, place.number)
    assert rows_of(inside) == rows_of(fitting)
    assert not rows_of(fitting) & (rows_of(known) | rows_of(outside))
    assert not rows_of(known) & rows_of(outside)
    assert len(outside) == 16


def test_the_last_tenth_along_the_first_component_is_left_out():
    line = torch.arange(100.0, dtype=torch.float64)
    noise = torch.randn(100, 2, generator=torch.Generator().manual_seed(0)).double()
    whole = data.Part(torch.cat((line[:, None] + noise, noise[:, :1]), 1), line)
    shuffled = whole[torch.randperm(100, generator=torch.Generator().manual_seed(1))]
    inside, outside = data.extrapolation(
        shuffled[torch.arange(70)], shuffled[torch.arange(70, 100)]
    )
    assert len(inside) == 90
    assert float(outside.targets.min()) > float(inside.targets.max()) - 5


def test_the_better_variant_is_trained_longer(place, monkeypatch):
    """Every variant is tried with the first candidate, the winner with all."""
    tried = []
    real = training.train_one

    def spy(part, method, candidate, *others):
        tried.append((method.spectral is None, candidate.steps, len(part)))
        return real(part, method, candidate, *others)

    monkeypatch.setattr(training, "train_one", spy)
    chosen = training.select(data.split(*place)[0], "daer", 8, 0)
    free = chosen.method.spectral is None
    assert tried == [
        (False, 8, 112),
        (True, 8, 112),
        (free, 12, 112),
        (free, chosen.chosen.steps, 140),
    ]
    assert chosen.regressor.method == chosen.method


def test_keys_identify_settings_and_the_method_of_this_library_comes_first(monkeypatch):
    assert ORDER[0] == "daer"
    assert sorted(ORDER) == sorted(regression.METHODS)
    keys = {measuring.key(*each) for each in (("yacht", 0, "daer"), ("yacht", 0, "der"))}
    monkeypatch.setattr(measuring, "PROTOCOL", measuring.PROTOCOL + 1)
    keys.add(measuring.key("yacht", 0, "daer"))
    monkeypatch.setattr(measuring, "VARIANTS", {})
    keys.add(measuring.key("yacht", 0, "daer"))
    assert len(keys) == 4


def test_ranks_of_unlike_inputs():
    """Three methods, of which one has no epistemic variance and is ranked by its total variance."""
    values = {"daer": (0.9, 0.95), "der": (0.8, 0.6), "mean": (0.7, None)}
    rows = []
    for method, (total, epistemic) in values.items():
        for name in ("yacht", "boston"):
            spec = {"experiment": "regression", "spec": measuring.key(name, 0, method)}
            for task in tables.UNLIKE_INPUTS:
                rows.append(row(method, name, task, "total", "auroc", total, **spec))
                if epistemic is not None:
                    rows.append(row(method, name, task, "epistemic", "auroc", epistemic, **spec))
            cover = ("extrapolation", "distribution", "coverage90", 0.86)
            rows.append(row(method, name, *cover, **spec))
    stale = {"experiment": "regression", "spec": "of another protocol"}
    rows.append(row("mean", "yacht", "noise", "total", "auroc", 1.0, **stale))
    table = tables.unlike(Results(catalogue(), tuple(rows)))
    head, _, *lines = ([cell.strip() for cell in x.split("|")] for x in table.splitlines())
    total, epistemic = head.index("rank, total"), head.index("rank, epistemic")
    found = {cells[1]: (cells[total], cells[epistemic]) for cells in lines}
    assert found == {
        "DAER": ("1.0", "1.0"),
        "Deep evidential regression": ("2.0", "3.0"),
        "Mean only": ("3.0", "2.0"),
    }
    assert "2 sets and splits" in head[1]
