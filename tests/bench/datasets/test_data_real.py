"""The published files, where DAEDL_DATA names a folder that holds them."""

import os
import warnings

import pytest
import torch

from daedl.data import DataWarning
from daedl_bench import datasets as data

pytestmark = pytest.mark.skipif(not os.environ.get("DAEDL_DATA"), reason="DAEDL_DATA is not set")


def loaded(name: str, split: str) -> data.ImageSet:
    if not data.present(name, split):
        pytest.skip(f"{name}, {split} is not there")
    return data.load(name, split, download=False)


@pytest.mark.parametrize(
    ("name", "split", "number", "first"),
    [
        ("mnist", "train", 60_000, [5, 0, 4, 1, 9]),
        ("mnist", "test", 10_000, [7, 2, 1, 0, 4]),
        ("fashion-mnist", "test", 10_000, [9, 2, 1, 1, 6]),
        ("kmnist", "test", 10_000, [2, 9, 3, 8, 3]),
        ("cifar10", "train", 50_000, [6, 9, 9, 4, 1]),
        ("cifar10", "test", 10_000, [3, 8, 8, 0, 6]),
        ("mnist-c/fog", "test", 10_000, [7, 2, 1, 0, 4]),
        ("mnist-c/zigzag", "test", 10_000, [7, 2, 1, 0, 4]),
    ],
)
def test_published_sets_are_what_they_are_known_to_be(name, split, number, first):
    """A checksum that differs would be a warning, which is an error here."""
    found = loaded(name, split)
    assert len(found) == number
    assert found.labels[:5].tolist() == first
    assert found.labels.unique().tolist() == list(range(10))


def test_cifar100_has_a_hundred_classes_of_equal_size():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # a file put together anew is fine
        found = loaded("cifar100", "test")
    assert torch.bincount(found.labels).tolist() == [100] * 100
    assert found.class_names is not None
    assert found.class_names[:2] == ("apple", "aquarium_fish")


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_moments_are_the_published_ones(name, mean, std):
    found = loaded(name, "train").mean_and_std()
    assert found[0] == pytest.approx(mean, abs=1e-4)
    assert found[1] == pytest.approx(std, abs=1e-4)
