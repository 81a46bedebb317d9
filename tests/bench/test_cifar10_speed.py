"""The study of speed on CIFAR-10, on small images."""

import pytest
from made import TINY, stripes

from daedl_bench.spec import catalogue
from daedl_bench.studies import cifar10_speed

PROTOCOL = catalogue(TINY).experiment("tiny").protocols["short"]


def test_the_loss_falls_and_the_time_is_projected():
    *losses, fall, time = cifar10_speed.first_steps(PROTOCOL, stripes("stripes", "train"), 12, 3)
    assert [each.case for each in losses][-1] == "ConvNet, steps 25 to 36"
    assert losses[-1].value < losses[0].value
    assert fall.value == pytest.approx(losses[-1].value / losses[0].value)
    assert fall.limit == 1
    assert time.case == "ConvNet, 2 epochs, projected from 36 steps"
    assert 0 < time.value < 1


def test_windows_continue_where_the_last_one_ended():
    windows = cifar10_speed.Windows([1, 2, 3], 2)
    assert [list(windows) for _ in range(3)] == [[1, 2], [3, 1], [2, 3]]
