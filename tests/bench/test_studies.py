"""Studies: each trial is measured once, and densities are shuffled."""

import pytest
import torch
from made import TINY
from made import stripes as load

from daedl_bench import results
from daedl_bench.cache import Cache
from daedl_bench.runner import measure_once
from daedl_bench.spec import catalogue
from daedl_bench.studies import mnist_rates, pairing
from daedl_bench.workspace import Workspace

SPECS = catalogue(TINY)
TRIAL = SPECS.trial("full", SPECS.protocols["tiny"], 0)


@pytest.fixture
def workspace(tmp_path):
    return Workspace(load, Cache(tmp_path / "cache"))


def test_a_trial_is_measured_once(workspace, tmp_path):
    path, measured = tmp_path / "rows.jsonl", []

    def validation(predictor):
        measured.append(predictor)
        return mnist_rates.validation(predictor)

    first, second = (
        measure_once(path, workspace, TRIAL, "full", validation, "study") for _ in range(2)
    )
    assert len(measured) == 1
    assert first == second == results.load(path)
    assert {(row.data, row.spec, row.experiment) for row in first} == {
        ("validation", TRIAL.key, "study")
    }
    assert {row.metric for row in first} == {"validation", "accuracy", "seconds", "brier", "nll"}


def test_mispaired_predictions_have_the_densities_of_other_images(workspace):
    paired = workspace.prepare(TRIAL)
    own, _ = paired.predict("noise")
    other, _ = pairing.Mispaired(**vars(paired)).predict("noise")
    assert not torch.equal(own.log_density, other.log_density)
    torch.testing.assert_close(own.log_density.sort().values, other.log_density.sort().values)
    assert torch.equal(own.labels, other.labels)
