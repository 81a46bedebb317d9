"""Parts of the corruptions against independent implementations."""

import colorsys

import numpy as np
import pytest
from scipy import ndimage

from daedl_bench.corruptions import blur, drawing, geometry, noise, spatter, tone, weather
from daedl_bench.corruptions.draws import Draws

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.uniform(size=(3, 2, 32, 32))
COLOUR = RANDOM.uniform(size=(4, 3, 5, 5))


def draws(count=3):
    return Draws(0, "test", 1, 0, count)


@pytest.mark.parametrize("zoom", [1.0, 1.01, 1.05, 1.25, 1.75, 2.25])
def test_enlargement_matches_scipys_zoom_of_the_centre(zoom):
    kept = int(np.ceil(32 / zoom))
    top = (32 - kept) // 2
    centre = IMAGES[:, :, top : top + kept, top : top + kept]
    theirs = ndimage.zoom(centre, (1, 1, zoom, zoom), order=1)
    trim = (theirs.shape[-1] - 32) // 2
    theirs = theirs[..., trim : trim + 32, trim : trim + 32]
    assert blur.enlarged(IMAGES, zoom) == pytest.approx(theirs, abs=1e-12)


def hsv(image, change):
    """`image` (3, H, W) with hue, saturation and value changed per pixel."""
    result = np.empty_like(image)
    for i, j in np.ndindex(*image.shape[1:]):
        result[:, i, j] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*image[:, i, j])))
    return result


@pytest.mark.parametrize("images", [COLOUR, np.zeros((1, 3, 2, 2)), np.full((1, 3, 2, 2), 0.4)])
def test_tone_matches_colorsys(images):
    bright = tone.brightness(images, draws(), added=0.3)
    strong = tone.saturate(images, draws(), factor=1.5, added=0.1)
    for n, image in enumerate(images):
        lifted = hsv(image, lambda h, s, v: (h, s, min(v + 0.3, 1)))
        coloured = hsv(image, lambda h, s, v: (h, min(1.5 * s + 0.1, 1), v))
        assert bright[n] == pytest.approx(lifted, abs=1e-12)
        assert strong[n] == pytest.approx(coloured, abs=1e-12)


def test_noise_has_the_given_deviation():
    grey = np.full((20, 3, 32, 32), 0.5)
    assert noise.gaussian_noise(grey, draws(20), scale=0.1).std() == pytest.approx(0.1, rel=0.02)
    assert noise.speckle_noise(grey, draws(20), scale=0.1).std() == pytest.approx(0.05, rel=0.02)
    shot = noise.shot_noise(grey, draws(20), photons=100)
    assert shot.std() == pytest.approx(np.sqrt(0.5 / 100), rel=0.02)
    salted = noise.impulse_noise(grey, draws(20), amount=0.2)
    assert np.mean(salted == 0) == pytest.approx(0.1, abs=0.005)
    assert np.mean(salted == 1) == pytest.approx(0.1, abs=0.005)


def test_motion_blur_is_a_trail_to_one_side():
    dot = np.zeros((2, 1, 32, 32))
    dot[:, :, 16, 16] = 1
    trail = blur.trailed(dot, np.radians([0.0, 45.0]), radius=6, sigma=2)
    weights = np.exp(-(np.arange(13) ** 2) / 8)
    expected = np.floor(255 * weights / weights.sum()) / 255
    assert trail[0, 0, 16, 4:17] == pytest.approx(expected[::-1], abs=1.01 / 255)
    assert np.diagonal(trail[1, 0])[4:17].sum() == pytest.approx(trail[1].sum())
    assert blur.trailed(np.ones((1, 1, 32, 32)), np.zeros(1), 6, 2).min() == 1


def test_blurs_preserve_flat_images():
    flat = np.full((3, 3, 32, 32), 0.4)
    for softened in (
        blur.gaussian_blur(flat, draws(), sigma=1),
        blur.defocus_blur(flat, draws(), radius=1.5, softness=0.1),
        blur.zoom_blur(flat, draws(), stop=1.26, step=0.01),
    ):
        assert softened == pytest.approx(flat)


def test_glass_blur_permutes_or_copies_pixels():
    levels = np.floor(255 * IMAGES) / 255
    shared = {"sigma": 0, "reach": 1, "rounds": 2, "vertical": False}
    swapped = blur.glass_blur(levels, draws(), **shared, chance=0.5, exchange=True)
    assert np.sort(swapped, axis=None) == pytest.approx(np.sort(levels, axis=None), abs=1.01 / 255)
    assert not np.array_equal(swapped, levels)
    still = blur.glass_blur(levels, draws(), **shared, chance=0, exchange=False)
    assert still == pytest.approx(levels, abs=1.01 / 255)


def test_plasma_is_rougher_with_slower_decay():
    smooth, rough = (weather.plasma(draws(), 32, decay) for decay in (3, 1.4))
    for field in (smooth, rough):
        assert field.min(axis=(1, 2)) == pytest.approx(0)
        assert field.max(axis=(1, 2)) == pytest.approx(1)
    assert np.abs(np.diff(rough)).mean() > 2 * np.abs(np.diff(smooth)).mean()


def test_edges_of_a_square_are_its_outline():
    square = np.zeros((20, 20))
    square[5:15, 5:15] = 255
    edges = spatter._edges(square, low=50, high=150)
    assert not edges[8:12, 8:12].any()
    assert edges.sum() >= 30
    assert not spatter._edges(0 * square, low=50, high=150).any()


@pytest.mark.parametrize("connected", [True, False])
def test_weak_edges_remain_if_connected_to_strong_ones(connected):
    steps = np.full((20, 1), 25.0)  # a gradient of 100, between the thresholds
    steps[:8] = 60.0  # a gradient of 240
    if not connected:
        steps[8:13] = 0
    levels = steps * (np.arange(20) >= 10)
    edges = spatter._edges(levels, low=50, high=150)
    assert edges[:6].any(axis=1).all()
    assert edges[15:].any() == connected


def test_geometry_preserves_position_and_area():
    dots = np.zeros((16, 1, 28, 28))
    dots[:, :, 13, 13] = 1
    moved = geometry.translate(dots, draws(16), pixels=3)
    places = {tuple(int(i) for i in np.argwhere(each[0])[0]) for each in moved}
    assert places == {(10, 10), (10, 16), (16, 10), (16, 16)}
    block = np.zeros((1, 1, 28, 28))
    block[..., 4:24, 4:24] = 1
    assert geometry.scale(block, draws(1), factor=0.7).sum() == pytest.approx(0.49 * 400, rel=0.01)
    assert geometry.rotate(block, draws(1), angle=0.4).sum() == pytest.approx(400, rel=0.01)


def test_elastic_transform_without_strength_is_affine():
    ramp = np.broadcast_to(np.arange(32.0) / 31, (3, 1, 32, 32)).copy()
    still = geometry.elastic_transform(ramp, draws(), strength=0, sigma=0, jitter=0)
    assert still == pytest.approx(ramp)
    moved = geometry.elastic_transform(ramp, draws(), strength=0, sigma=0, jitter=1)[
        ..., 8:24, 8:24
    ]
    assert np.diff(moved, n=2) == pytest.approx(np.zeros((3, 1, 16, 14)), abs=1e-9)


def test_lines_cover_their_columns_only():
    black = np.zeros((5, 1, 28, 28))
    dotted = drawing.dotted_line(black, draws(5), dash=2).max(axis=(0, 1, 2))
    assert dotted[[0, 1, 4, 5, 27]].max() == 0
    assert dotted[[2, 3, 6, 7]].min() > 0.5
    wave = drawing.zigzag(black, draws(5), length=2, width=2)
    assert wave[..., :1].max() == wave[..., 26:].max() == 0
    assert wave.max(axis=(0, 1, 2))[4:24].min() > 0.3
