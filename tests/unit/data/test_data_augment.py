"""Augmentation of batches, against references for single images."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from daedl.data import (
    Chain,
    Crop,
    Flip,
    Rotate,
    augmentation,
)
from daedl.data.augment import rotate

ALL = [Flip(), Crop(), Rotate(), Chain((Flip(), Crop(), Rotate()))]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(40, 3, 9, 7, generator=seeded(0)) + 0.1


@pytest.mark.parametrize("step", ALL, ids=lambda step: type(step).__name__)
def test_augmentations_are_seeded_and_not_in_place(step, images):
    before = images.clone()
    first = step(images, seeded(1))
    assert torch.equal(first, step(images, seeded(1)))
    assert not torch.equal(first, step(images, seeded(2)))
    assert first.shape == images.shape
    assert torch.equal(images, before)


def test_flip_mirrors_half_of_the_images(images):
    many = images.repeat(50, 1, 1, 1)
    flipped = 0
    for image, changed in zip(many, Flip()(many, seeded(3)), strict=True):
        mirrored = torch.tensor(np.fliplr(image.permute(1, 2, 0).numpy()).copy()).permute(2, 0, 1)
        assert torch.equal(changed, image) or torch.equal(changed, mirrored)
        flipped += torch.equal(changed, mirrored)
    assert 880 < flipped < 1120  # of 2000, standard deviation 22
    assert torch.equal(Flip(0.0)(images, seeded(0)), images)
    assert torch.equal(Flip(1.0)(images, seeded(0)), images.flip(-1))


@pytest.mark.parametrize(("crop", "padding"), [(Crop(2), 2), (Crop(), 4)])
def test_crop_shifts_by_up_to_the_padding(images, crop, padding):
    many = images.repeat(20, 1, 1, 1)
    steps = range(2 * padding + 1)
    moves = set()
    for image, changed in zip(many, crop(many, seeded(4)), strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (padding, padding), (padding, padding)))
        crops = np.array([[padded[:, y : y + 9, x : x + 7] for x in steps] for y in steps])
        (found,) = np.argwhere((crops == changed.numpy()).all((2, 3, 4)))
        moves.add(tuple(found))
    assert len(moves) == len(steps) ** 2


def test_rotation_equals_scipy(images):
    angles = torch.linspace(-0.5, 0.5, len(images))
    turned = rotate(images, angles)
    center = np.array([4.0, 3.0])  # of 9 rows and 7 columns
    for image, angle, changed in zip(images, angles.tolist(), turned, strict=True):
        cos, sin = math.cos(angle), math.sin(angle)
        matrix = np.array([[cos, sin], [-sin, cos]])  # from output (row, column) to input
        for channel in range(3):
            expected = ndimage.affine_transform(
                image[channel].numpy(),
                matrix,
                center - matrix @ center,
                order=1,
                mode="grid-constant",
            )
            assert np.abs(changed[channel].numpy() - expected).max() < 1e-5


def test_rotation_has_the_direction_of_pillow():
    image = np.zeros((21, 21), np.float32)
    image[8:13, 3:18] = 1
    image[2:8, 10:12] = 1
    picture = Image.fromarray(image).rotate(20, Image.Resampling.BILINEAR)
    turned = rotate(torch.from_numpy(image)[None, None], torch.tensor([math.radians(20)]))
    assert np.abs(turned[0, 0].numpy() - np.asarray(picture)).max() < 1e-3


def test_angles_are_within_the_limit():
    column = torch.zeros(500, 1, 41, 41)
    column[:, :, :, 20] = 1
    turned = Rotate()(column, seeded(5))
    # Where the line crosses row 4, 16 rows above the centre: the tangent of the angle.
    row = turned[:, 0, 4]
    place = (row * torch.arange(41.0)).sum(1) / row.sum(1)
    degrees = torch.rad2deg(torch.atan((20 - place) / 16))
    assert degrees.abs().max() < 15.5
    assert degrees.min() < -14
    assert degrees.max() > 14
    assert abs(float(degrees.mean())) < 1.5  # standard deviation 0.39


def test_augmentations_by_name():
    names = ["flip", "crop", "rotate"]
    assert augmentation(names) == Chain((Flip(0.5), Crop(4), Rotate(15.0)))
    assert augmentation([]) is None
    with pytest.raises(ValueError, match="did you mean 'rotate'"):
        augmentation(["rotat"])


def test_cropped_images_can_be_reflected_at_the_border():
    images = torch.arange(1.0, 17.0).view(1, 1, 4, 4)
    generator = torch.Generator().manual_seed(0)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="reflect")
    crops = [padded[..., i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    for _ in range(5):
        found = Crop(1, mode="reflect")(images, generator)
        assert any(torch.equal(found, each) for each in crops)
