"""Studies: each trial is measured once, and their own ways to split or shuffle data."""

import pytest
import torch
from made import TINY
from made import stripes as load

from daedl.data import ImageSet
from daedl_bench import results
from daedl_bench.cache import Cache
from daedl_bench.runner import measure_once
from daedl_bench.spec import catalogue
from daedl_bench.studies import mnist_quick, pairing
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
        return mnist_quick.validation(predictor)

    first, second = (
        measure_once(path, workspace, TRIAL, "full", validation, "study") for _ in range(2)
    )
    assert len(measured) == 1
    assert first == second == results.load(path)
    assert {(row.data, row.spec, row.experiment) for row in first} == {
        ("validation", TRIAL.key, "study")
    }
    assert {row.metric for row in first} == {"validation", "accuracy", "seconds", "brier", "nll"}


def test_digits_are_left_out_and_the_others_relabelled():
    labels = torch.arange(40) % 10
    images = labels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 28, 28)
    known, others = mnist_quick.split_digits(
        ImageSet(images.contiguous(), labels, "mnist", "train"), (3, 4, 5)
    )
    digits = torch.tensor([0, 1, 2, 6, 7, 8, 9])
    assert torch.equal(digits[known.labels].to(torch.uint8), known.images[:, 0, 0, 0])
    assert set(others.images.flatten().tolist()) == {3, 4, 5}
    (candidate, *_) = mnist_quick.candidates()
    changed = mnist_quick.without_digits(candidate, known)
    assert changed.network["num_classes"] == 7
    assert sum(changed.split) == len(known)


def test_mispaired_predictions_have_the_densities_of_other_images(workspace):
    paired = workspace.prepare(TRIAL)
    own, _ = paired.predict("noise")
    other, _ = pairing.Mispaired(**vars(paired)).predict("noise")
    assert not torch.equal(own.log_density, other.log_density)
    torch.testing.assert_close(own.log_density.sort().values, other.log_density.sort().values)
    assert torch.equal(own.labels, other.labels)
