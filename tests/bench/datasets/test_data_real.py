"""The published files, if DAEDL_DATA names a folder with them."""

import os
import warnings

import pytest
import torch

from daedl.data import DataWarning, ImageSet
from daedl_bench import datasets as data

pytestmark = pytest.mark.skipif(not os.environ.get("DAEDL_DATA"), reason="DAEDL_DATA is not set")


def load(name: str, split: str) -> ImageSet:
    if not data.present(name, split):
        pytest.skip(f"{name}, {split} is not available")
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
def test_published_datasets_have_the_known_labels(name, split, number, first):
    """A different checksum would issue a warning, which is an error in tests."""
    loaded = load(name, split)
    assert len(loaded) == number
    assert loaded.labels[:5].tolist() == first
    assert loaded.labels.unique().tolist() == list(range(10))


def test_cifar100_has_100_balanced_classes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # a rebuilt file is accepted
        loaded = load("cifar100", "test")
    assert torch.bincount(loaded.labels).tolist() == [100] * 100
    assert loaded.class_names is not None
    assert loaded.class_names[:2] == ("apple", "aquarium_fish")


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_moments_match_the_published_ones(name, mean, std):
    loaded = load(name, "train").mean_and_std()
    assert loaded[0] == pytest.approx(mean, abs=1e-4)
    assert loaded[1] == pytest.approx(std, abs=1e-4)
