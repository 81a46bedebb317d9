"""ImageSet: validation, splits and conversions."""

import numpy as np
import pytest
import torch
from PIL import Image

from daedl.data import ImageSet
from daedl_bench.datasets import noise


def a_set(number: int = 4, shape: tuple[int, int, int] = (1, 8, 8), **fields) -> ImageSet:
    images = noise(shape, number=number).images
    values = {"labels": torch.arange(number), "name": "mine", "split": "test"} | fields
    return ImageSet(images, **values)


def test_subset_keeps_order_and_names(colours):
    part = colours.subset([7, 2, 2])
    assert part.labels.tolist() == [7, 2, 2]
    assert torch.equal(part.images[0], colours.images[7])
    assert (part.name, part.split, len(part), part.shape) == ("colours", "test", 3, (3, 6, 5))


@pytest.mark.parametrize("indices", [[], [10], [-1]])
def test_indices_out_of_range_are_rejected(colours, indices):
    with pytest.raises(ValueError, match="from 0 to 9"):
        colours.subset(torch.tensor(indices, dtype=torch.int64))


def test_masks_are_rejected(colours):
    with pytest.raises(TypeError, match="nonzero"):
        colours.subset(colours.labels > 3)


def test_random_split_is_disjoint_complete_and_seeded(colours):
    first, second = colours.random_split(7, seed=1)
    again, _ = colours.random_split(7, seed=1)
    other, _ = colours.random_split(7, seed=2)
    assert (len(first), len(second)) == (7, 3)
    assert sorted(torch.cat((first.labels, second.labels)).tolist()) == list(range(10))
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.labels, other.labels)
    with pytest.raises(ValueError, match="1 to 9"):
        colours.random_split(10, seed=0)


def test_stratified_split_has_the_same_share_of_every_class():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10 + [3] * 2 + [4])
    images = ImageSet(torch.zeros(103, 1, 2, 2, dtype=torch.uint8), labels, "unequal", "train")
    for seed in range(5):
        first, second = images.random_split(20, seed, stratify=True)
        assert torch.bincount(first.labels, minlength=5).tolist() == [12, 6, 2, 0, 0]
        assert torch.bincount(second.labels).tolist() == [48, 24, 8, 2, 1]


def test_number_of_classes():
    assert a_set().num_classes == 4
    assert a_set(class_names=tuple("abcdef")).num_classes == 6


@pytest.mark.parametrize(
    ("images", "error", "keyword"),
    [
        (torch.zeros(2, 1, 4, 4), TypeError, "torch.float32"),
        (np.zeros((2, 1, 4, 4), np.uint8), TypeError, "ndarray"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), ValueError, "unsqueeze"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), ValueError, "permute"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), ValueError, "N > 0"),
    ],
)
def test_invalid_images_are_rejected(images, error, keyword):
    with pytest.raises(error, match=keyword):
        ImageSet(images, torch.zeros(len(images), dtype=torch.int64), "mine", "test")


@pytest.mark.parametrize(
    ("labels", "error", "keyword"),
    [
        (torch.zeros(4), TypeError, "labels.long"),
        ([0, 0, 0, 0], TypeError, "list"),
        (torch.zeros(3, dtype=torch.int64), ValueError, r"shape \(3,\)"),
        (torch.tensor([0, 1, 2, -1]), ValueError, "from -1 to 2"),
        (torch.tensor([0, 1, 2, 3]), ValueError, "0 to 2"),
    ],
)
def test_invalid_labels_are_rejected(labels, error, keyword):
    with pytest.raises(error, match=keyword):
        a_set(labels=labels, class_names=("a", "b", "c"))


def test_grey_is_repeated_over_channels():
    grey = a_set(shape=(1, 32, 32))
    rgb = grey.converted(3, 32)
    assert rgb.shape == (3, 32, 32)
    assert rgb.images.is_contiguous()
    assert all(torch.equal(rgb.images[:, c], grey.images[:, 0]) for c in range(3))
    assert rgb.converted(3, 32) is rgb


def test_conversion_to_grey_equals_pillow():
    rgb = a_set(shape=(3, 8, 8))
    grey = rgb.converted(1, 8)
    for image, expected in zip(grey.images, rgb.images, strict=True):
        reference = np.asarray(Image.fromarray(expected.permute(1, 2, 0).numpy()).convert("L"))
        assert np.abs(image[0].numpy().astype(int) - reference).max() <= 1  # Pillow rounds down


@pytest.mark.parametrize("size", [20, 32])
def test_resizing_equals_pillow(size):
    small = a_set(shape=(1, 28, 28))
    for image, expected in zip(small.converted(1, size).images, small.images, strict=True):
        picture = Image.fromarray(expected[0].numpy())
        reference = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(image[0].numpy().astype(int) - reference).max() <= 1


def test_invalid_channels_are_rejected(colours):
    with pytest.raises(ValueError, match="1 or 3 channels"):
        colours.converted(4, 32)


def test_mean_and_std(colours):
    mean, std = colours.mean_and_std()
    pixels = colours.images.double().div(255).transpose(0, 1).flatten(1)
    assert mean == pytest.approx(pixels.mean(1).tolist(), abs=1e-12)
    assert std == pytest.approx(pixels.std(1, correction=0).tolist(), abs=1e-12)


def test_noise_is_seeded_and_uniform():
    first = noise((3, 32, 32), number=50, seed=4)
    assert torch.equal(first.images, noise((3, 32, 32), number=50, seed=4).images)
    assert not torch.equal(first.images, noise((3, 32, 32), number=50, seed=5).images)
    counts = torch.bincount(first.images.flatten(), minlength=256)
    assert counts.min() > 450  # of 600 expected each, standard deviation 24
    assert counts.max() < 750
