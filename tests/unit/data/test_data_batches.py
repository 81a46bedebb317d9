"""Batches: every image once, in an order that depends on seed and epoch only."""

import pytest
import torch

from daedl.data import Flip, augmentation
from daedl.data.loaders import start_epoch


def labels(batches) -> list[int]:
    return [int(label) for _, targets in batches for label in targets]


def test_batches_are_in_order_by_default(colours):
    batches = colours.batches(4)
    images = torch.cat([images for images, _ in batches])
    assert labels(batches) == list(range(10))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert len(batches) == 3
    assert torch.equal(images, colours.images)


def test_shuffled_batches_contain_every_image_with_its_label(colours):
    batches = colours.batches(3, shuffle=True, seed=1)
    assert sorted(labels(batches)) == list(range(10))
    for images, targets in batches:
        assert torch.equal(images, colours.images[targets])


def test_order_depends_on_seed_and_epoch_only(colours):
    batches = colours.batches(3, shuffle=True, seed=1)
    first = labels(batches)
    assert labels(batches) == first
    start_epoch(batches, 1)
    second = labels(batches)
    assert second != first
    assert labels(colours.batches(5, shuffle=True, seed=2)) != first
    again = colours.batches(5, shuffle=True, seed=1)
    start_epoch(again, 1)
    assert labels(again) == second


def test_global_random_state_is_neither_used_nor_changed(colours):
    batches = colours.batches(3, shuffle=True, augment=Flip())
    before = torch.get_rng_state()
    first = [images for images, _ in batches]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert all(torch.equal(a, b) for a, (b, _) in zip(first, batches, strict=True))


def test_augmentation_depends_on_seed_and_epoch_only(colours):
    augment = augmentation(["flip", "crop", "rotate"])
    batches = colours.batches(3, seed=1, augment=augment)
    first = torch.cat([images for images, _ in batches])
    assert torch.equal(torch.cat([images for images, _ in batches]), first)
    start_epoch(batches, 1)
    assert not torch.equal(torch.cat([images for images, _ in batches]), first)
    other = colours.batches(3, seed=2, augment=augment)
    assert not torch.equal(torch.cat([images for images, _ in other]), first)


def test_augmentation_receives_floats_from_0_to_1(colours):
    seen = []

    def augment(images, generator):
        seen.append((float(images.min()), float(images.max())))
        return torch.zeros_like(images)

    assert all(images.dtype == torch.float32 for images, _ in colours.batches(4, augment=augment))
    assert all(low >= 0 and 0.9 < high <= 1 for low, high in seen)


def test_plain_batches_are_in_order_and_not_augmented(colours):
    shuffled = colours.batches(4, shuffle=True, augment=Flip(1.0), drop_last=True)
    plain = shuffled.plain()
    assert labels(plain) == list(range(10))
    assert torch.equal(torch.cat([images for images, _ in plain]), colours.images)


def test_drop_last(colours):
    batches = colours.batches(4, drop_last=True)
    assert len(batches) == len(list(batches)) == 2
    assert len(colours.batches(5, drop_last=True)) == 2


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 11, "drop_last": True}, "drop_last"),
    ],
)
def test_invalid_options_are_rejected(colours, options, keyword):
    with pytest.raises(ValueError, match=keyword):
        colours.batches(**options)
