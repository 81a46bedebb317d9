"""Batches: every image once, in an order that depends on seed and epoch alone."""

import pytest
import torch

import daedl
from daedl.data import Flip, ImageSet, augmentation
from daedl.training.loaders import start_epoch
from daedl_bench.datasets import noise


def labels(batches) -> list[int]:
    return [int(label) for _, targets in batches for label in targets]


def test_in_order_pixels_are_shares_of_255(colours):
    batches = colours.batches(4)
    images = torch.cat([images for images, _ in batches])
    assert labels(batches) == list(range(10))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert len(batches) == 3
    assert torch.equal(images, colours.images.float() / 255)


def test_shuffled_every_image_comes_once_with_its_label(colours):
    batches = colours.batches(3, shuffle=True, seed=1)
    assert sorted(labels(batches)) == list(range(10))
    for images, targets in batches:
        assert torch.equal(images, colours.images[targets].float() / 255)


def test_the_order_depends_on_seed_and_epoch_alone(colours):
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


def test_global_random_numbers_are_neither_used_nor_moved(colours):
    batches = colours.batches(3, shuffle=True, augment=Flip())
    before = torch.get_rng_state()
    first = [images for images, _ in batches]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert all(torch.equal(a, b) for a, (b, _) in zip(first, batches, strict=True))


def test_augmentation_depends_on_seed_and_epoch_alone(colours):
    augment = augmentation(["flip", "crop", "rotate"])
    batches = colours.batches(3, seed=1, augment=augment)
    first = torch.cat([images for images, _ in batches])
    assert torch.equal(torch.cat([images for images, _ in batches]), first)
    start_epoch(batches, 1)
    assert not torch.equal(torch.cat([images for images, _ in batches]), first)
    other = colours.batches(3, seed=2, augment=augment)
    assert not torch.equal(torch.cat([images for images, _ in other]), first)


def test_normalised_with_their_own_moments_images_are_standard(colours):
    mean, std = colours.mean_and_std()
    images = torch.cat([images for images, _ in colours.batches(4, mean=mean, std=std)])
    channels = images.transpose(0, 1).flatten(1)
    assert channels.mean(1).abs().max() < 1e-5
    assert (channels.std(1, correction=0) - 1).abs().max() < 1e-5


def test_augmentation_sees_shares_before_they_are_normalised(colours):
    seen = []

    def augment(images, generator):
        seen.append((float(images.min()), float(images.max())))
        return torch.zeros_like(images)

    batches = colours.batches(4, mean=[0.5] * 3, std=[0.5] * 3, augment=augment)
    assert all(torch.equal(images, -torch.ones_like(images)) for images, _ in batches)
    assert all(low >= 0 and 0.9 < high <= 1 for low, high in seen)


def test_plain_batches_are_in_order_and_not_augmented(colours):
    shuffled = colours.batches(4, shuffle=True, augment=Flip(1.0), mean=[0.1] * 3, drop_last=True)
    plain = shuffled.plain()
    expected = colours.images.float() / 255 - 0.1
    assert labels(plain) == list(range(10))
    assert torch.allclose(torch.cat([images for images, _ in plain]), expected)


def test_the_last_batch_can_be_left_out(colours):
    batches = colours.batches(4, drop_last=True)
    assert len(batches) == len(list(batches)) == 2
    assert len(colours.batches(5, drop_last=True)) == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "expected at least 1"),
        ({"batch_size": 11, "drop_last": True}, "no more than there are images"),
        ({"mean": [0.5]}, r"mean has 1 values but the images have 3 channel\(s\)"),
        ({"std": [0.5, 0.5, 0.0]}, "positive"),
    ],
)
def test_impossible_options_are_refused(colours, options, text):
    with pytest.raises(ValueError, match=text):
        colours.batches(**options)


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_fit_takes_them_for_training_validation_and_density():
    images = noise((1, 8, 8), number=60).images
    images[::2] //= 8
    dark = (torch.arange(60) % 2 == 0).long()
    train = ImageSet(images, dark, "brightness", "train")
    model = daedl.Classifier(daedl.networks.ConvNet(1, 2, 8))
    history = daedl.fit(
        model,
        train.batches(20, shuffle=True, augment=Flip()),
        train.batches(),
        fit_data=train.batches(),
        max_epochs=2,
        progress=False,
    )
    assert len(history.epochs) == 2
    assert model.predict(images.float() / 255).labels.shape == (60,)
