"""Moves of the whole image, and the elastic transform."""

import numpy as np
from scipy import ndimage

from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.sampling import about_centre, affine, bilinear


def shear(images: Array, draws: Draws, *, angle: float) -> Array:
    """Read at (1, -sin s; 0, cos s) about the centre, s = `angle` or -`angle` in radians."""
    s = angle * draws.signs()
    one, nothing = np.ones_like(s), np.zeros_like(s)
    return _moved(images, np.array([[one, -np.sin(s)], [nothing, np.cos(s)]]))


def rotate(images: Array, draws: Draws, *, angle: float) -> Array:
    """Turned by `angle` radians about the centre, either way."""
    turn = angle * draws.signs()
    return _moved(images, np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]))


def scale(images: Array, draws: Draws, *, factor: float) -> Array:  # noqa: ARG001
    """Shrunk to `factor` of the side about the centre."""
    linear = np.broadcast_to(np.eye(2)[..., None] / factor, (2, 2, len(images)))
    return _moved(images, linear)


def translate(images: Array, draws: Draws, *, pixels: int) -> Array:
    """Moved by `pixels` along both axes, each either way; black comes in."""
    matrices = np.zeros((len(images), 2, 3))
    matrices[:, :, :2] = np.eye(2)
    matrices[:, :, 2] = pixels * draws.signs(2)
    return affine(images, matrices, "zero")


def elastic_transform(
    images: Array, draws: Draws, *, strength: float, sigma: float, jitter: float
) -> Array:
    """A random affine map, then each pixel read `strength` · smoothed noise away from its place.

    The affine map takes three corners of a square about the middle, each moved by up to `jitter`
    pixels, back to where they were. The noise is even in [-1, 1), smoothed with `sigma` pixels.
    """
    height, width = images.shape[2:]
    middle, reach = height // 2, height // 3
    corners = middle + reach * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = corners + draws.uniform(-jitter, jitter, 3, 2)
    solved = np.linalg.solve(
        np.concatenate([moved, np.ones_like(moved[..., :1])], axis=-1), corners
    )
    images = affine(images, solved.transpose(0, 2, 1), "mirror")
    noise = draws.uniform(-1.0, 1.0, 2, height, width)
    sigmas = (0.0, 0.0, sigma, sigma)
    away = strength * ndimage.gaussian_filter(noise, sigmas, mode="reflect", truncate=3.0)
    row, column = np.mgrid[:height, :width]
    return bilinear(images, row + away[:, 0], column + away[:, 1], "reflect")


def _moved(images: Array, linear: Array) -> Array:
    """`images` read at `linear` (2, 2, N) about the centre, black outside."""
    return affine(images, about_centre(linear.transpose(2, 0, 1)), "zero")
