"""Digits: how they are split, and that a run repeats."""

from dataclasses import replace

import pytest
import torch

from daedl.demo import digits
from daedl.demo.training import Training

BRIEF = replace(digits.Settings(), training=Training(1, batch_size=64, patience=1))


def test_every_image_is_used_once_and_every_part_has_every_class() -> None:
    data = digits.load(0, digits.Settings())
    parts = data.train, data.val, data.test
    assert sum(len(x) for x, _ in parts) + len(data.unknown[0]) == 1797
    images = torch.cat([*(x for x, _ in parts), data.unknown[0]])
    assert len(images.flatten(1).unique(dim=0)) == 1797
    assert images.min() == 0
    assert images.max() == 1
    for _, classes in parts:
        shares = torch.bincount(classes, minlength=8) / len(classes)
        assert shares.min() > 0.1
        assert shares.max() < 0.15
    assert set(data.unknown[1].tolist()) == {8, 9}
    assert data.noise.shape == data.test[0].shape


def test_classes_are_renumbered_when_a_digit_in_the_middle_is_held_out() -> None:
    settings = digits.Settings(held_out=(0, 5))
    data = digits.load(0, settings)
    assert settings.known == (1, 2, 3, 4, 6, 7, 8, 9)
    assert set(data.train[1].tolist()) == set(range(8))
    assert set(data.unknown[1].tolist()) == {0, 5}


@pytest.mark.parametrize("held_out", [(), (10,), tuple(range(9))])
def test_a_senseless_choice_of_digits_is_refused(held_out: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected digits from 0 to 9"):
        digits.Settings(held_out=held_out)


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_a_run_repeats_and_another_seed_differs() -> None:
    first, again, other = (
        [row.value for row in digits.run(seed, BRIEF).rows()] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
