"""Digits: splits and reproducibility."""

import pytest
import torch

from daedl.demo import digits
from daedl.demo.training import Training


def test_every_image_is_used_once_and_splits_are_stratified() -> None:
    data = digits.load(0)
    splits = data.train, data.val, data.test
    images = torch.cat([x for x, _ in (*splits, data.unknown)])
    assert len(images) == len(images.flatten(1).unique(dim=0)) == 1797
    assert images.min() == 0
    assert images.max() == 1
    for _, classes in splits:
        shares = torch.bincount(classes, minlength=digits.CLASSES) / len(classes)
        assert len(shares) == digits.CLASSES
        assert shares.min() > 0.1
        assert shares.max() < 0.15
    assert set(data.unknown[1].tolist()) == {8, 9}
    assert data.noise.shape == data.test[0].shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_equal_seeds_reproduce_and_other_seeds_differ() -> None:
    brief = Training(1, batch_size=64, patience=1)
    first, again, other = (digits.run(seed, brief).measure() for seed in (0, 0, 1))
    assert first == again
    assert first != other
