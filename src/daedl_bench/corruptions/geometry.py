"""Affine maps of the image, and the elastic transform."""

import numpy as np
from scipy import ndimage
from skimage.transform import warp

from daedl_bench.corruptions.draws import Array, Draws


def shear(images: Array, draws: Draws, *, angle: float) -> Array:
    """Sampled at (1, -sin s; 0, cos s) about the centre, s = ±`angle` in radians."""
    s = angle * draws.signs()
    return _warped(images, _centred([[1 + 0 * s, -np.sin(s)], [0 * s, np.cos(s)]]))


def rotate(images: Array, draws: Draws, *, angle: float) -> Array:
    """Rotated by ±`angle` radians about the centre."""
    s = angle * draws.signs()
    return _warped(images, _centred([[np.cos(s), -np.sin(s)], [np.sin(s), np.cos(s)]]))


def scale(images: Array, _: Draws, *, factor: float) -> Array:
    """Reduced to `factor` of the side about the centre."""
    s = np.full(len(images), 1 / factor)
    return _warped(images, _centred([[s, 0 * s], [0 * s, s]]))


def translate(images: Array, draws: Draws, *, pixels: int) -> Array:
    """Moved by ±`pixels` along both axes, with black outside."""
    matrices = np.tile(np.eye(3), (len(images), 1, 1))
    matrices[:, :2, 2] = pixels * draws.signs(2)
    return _warped(images, matrices)


def elastic_transform(
    images: Array, draws: Draws, *, strength: float, sigma: float, jitter: float
) -> Array:
    """A random affine map, then each pixel sampled at a displacement of `strength` · smoothed noise.

    The affine map takes three corners of a central square, each moved by up to `jitter` pixels, back to
    their places. The noise is uniform in [-1, 1), smoothed with `sigma` pixels.
    """
    height, width = images.shape[2:]
    corners = height // 2 + height // 3 * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = corners + draws.uniform(-jitter, jitter, 3, 2)
    matrices = np.tile(np.eye(3), (len(images), 1, 1))
    homogeneous = np.concatenate([moved, np.ones_like(moved[..., :1])], axis=-1)
    matrices[:, :2] = np.linalg.solve(homogeneous, corners).transpose(0, 2, 1)
    images = _warped(images, matrices, "reflect")
    noise = draws.uniform(-1.0, 1.0, 2, height, width)
    shift = ndimage.gaussian_filter(noise, sigma, mode="reflect", truncate=3.0, axes=(2, 3))
    places = np.mgrid[:height, :width] + strength * shift
    return sampled(images, places, "reflect")


def sampled(images: Array, places: Array, mode: str) -> Array:
    """`images` (N, C, H, W) at real-valued rows and columns `places` (N, 2, H', W'), bilinearly."""
    return np.array(
        [
            [ndimage.map_coordinates(channel, place, order=1, mode=mode) for channel in image]
            for image, place in zip(images, places, strict=True)
        ]
    )


def _warped(images: Array, matrices: Array, mode: str = "constant") -> Array:
    """Each image sampled at its map `matrices` (N, 3, 3) of (column, row, 1), bilinearly."""
    pairs = zip(images.transpose(0, 2, 3, 1), matrices, strict=True)
    options = {"order": 1, "mode": mode, "clip": False}
    warps = [warp(image, matrix, **options) for image, matrix in pairs]  # type: ignore[no-untyped-call]
    return np.stack(warps).transpose(0, 3, 1, 2)


def _centred(linear: list[list[Array]]) -> Array:
    """The maps (N, 3, 3) that apply `linear` (2, 2, N) about the centre of 28 x 28 images."""
    matrices = np.zeros((len(linear[0][0]), 3, 3))
    matrices[:, :2, :2] = np.array(linear).transpose(2, 0, 1)
    matrices[:, :2, 2] = 13.5 - 13.5 * matrices[:, :2, :2].sum(axis=2)
    matrices[:, 2, 2] = 1
    return matrices
