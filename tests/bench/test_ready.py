"""The ready model in the repository."""

from pathlib import Path

import pytest

import daedl
from daedl_bench.datasets import noise

MODEL = Path(__file__).parents[2] / "models" / "cifar10.daedl"


@pytest.fixture(scope="module")
def model():
    return daedl.Classifier.load(MODEL)


def test_it_is_small_and_names_its_classes(model):
    assert MODEL.stat().st_size < 8 * 2**20
    assert len(model.class_names) == 10


def test_it_rejects_noise(model):
    prediction = model.predict(noise((3, 32, 32), 64).images)
    assert not prediction.accept.any()
    assert all(prediction.reason)
