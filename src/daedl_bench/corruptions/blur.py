"""Blurs."""

from functools import cache

import numpy as np
from scipy import ndimage

from daedl_bench.corruptions.draws import Array, Draws

# Smaller weights of a motion blur cannot change a grey level, even added up.
_NEGLIGIBLE = 1e-5
# Sums in floating point may fall below an integer grey level by this much.
_ROUNDING = 1e-6


def smoothed(images: Array, sigma: float | tuple[float, float]) -> Array:
    """Gaussian blur of the last two axes, edges repeated, as in skimage.filters.gaussian."""
    return np.asarray(ndimage.gaussian_filter(images, sigma, mode="nearest", axes=(-2, -1)))


def enlarged(images: Array, zoom: float) -> Array:
    """The centre of square images (N, C, H, H), enlarged `zoom` >= 1 times by linear interpolation."""
    matrix = _enlargement(images.shape[-1], zoom)
    return matrix @ images @ matrix.T


@cache
def _enlargement(side: int, zoom: float) -> Array:
    """The matrix (side, side) that enlarges along one axis; 40 times faster than scipy.ndimage.zoom.

    The central `kept` pixels are stretched to `size`, end to end, and the central `side` of these are
    taken, as in the published generators. Both are integers, so that very small zooms have no effect.
    """
    kept = int(np.ceil(side / zoom))
    size = round(kept * zoom)
    taken = np.arange(side) + (size - side) // 2
    place = (side - kept) // 2 + taken * (kept - 1) / max(size - 1, 1)
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(side))))


def trailed(images: Array, angles: Array, radius: float, sigma: float) -> Array:
    """Σ_i w_i · x at i steps in the direction of `angles` (N,), w_i ∝ exp(-i² / 2 sigma²), edges repeated.

    i runs from 0 to 2 · radius; steps are rounded to pixels, and the result down to one of 256 levels, as
    in ImageMagick.
    """
    height, width = images.shape[2:]
    weights = np.exp(-(np.arange(2 * np.ceil(radius) + 1) ** 2) / (2 * sigma**2))
    weights = weights[weights > _NEGLIGIBLE * weights.sum()]
    weights /= weights.sum()
    batch = np.arange(len(images))[:, None, None]
    result = np.zeros_like(images)
    for step, weight in enumerate(weights):
        down = np.ceil(step * np.sin(angles) - 0.5).astype(np.int64)[:, None, None]
        across = np.ceil(step * np.cos(angles) - 0.5).astype(np.int64)[:, None, None]
        rows = (np.arange(height)[:, None] + down).clip(0, height - 1)
        columns = (np.arange(width) + across).clip(0, width - 1)
        result += weight * np.moveaxis(images[batch, :, rows, columns], -1, 1)
    return np.floor(255 * result + _ROUNDING) / 255


def gaussian_blur(images: Array, _: Draws, *, sigma: float) -> Array:
    """x * Gauss(sigma)."""
    return smoothed(images, sigma)


def glass_blur(
    images: Array,
    draws: Draws,
    *,
    sigma: float,
    reach: int,
    rounds: int,
    chance: float,
    exchange: bool,
    vertical: bool,
) -> Array:
    """Blur, move pixels locally, blur again.

    From the lower right to the upper left, each pixel is paired with one up to `reach` above and left of it
    (less than `reach` below and right) with probability `chance`; the two are exchanged if `exchange`,
    otherwise the second is copied. The blur is `vertical` only, or in both directions.
    """
    sigmas = (sigma, 0.0 if vertical else sigma)
    pixels = np.floor(255 * smoothed(images, sigmas)).transpose(2, 3, 0, 1).copy()
    height, width, count, _ = pixels.shape
    batch = np.arange(count)
    moves = draws.integers(-reach, reach, rounds, height, width, 2)
    moves *= draws.uniform(0.0, 1.0, rounds, height, width, 1) < chance
    for turn in range(rounds):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, across = moves[:, turn, row, column].T
                other = (row + down, column + across, batch)
                value = pixels[other]
                if exchange:
                    pixels[other] = pixels[row, column]
                pixels[row, column] = value
    return smoothed(pixels.transpose(2, 3, 0, 1) / 255, sigmas)


def defocus_blur(images: Array, _: Draws, *, radius: float, softness: float) -> Array:
    """x * disk(radius), the disk blurred by 3 x 3 Gaussian weights of width `softness`."""
    reach = int(radius) + 1
    row, column = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (row**2 + column**2 <= radius**2).astype(np.float64)
    weights = np.exp(-np.array([1.0, 0.0, 1.0]) / (2 * softness**2))
    kernel = ndimage.convolve(disk, np.outer(weights, weights), mode="constant")
    kernel /= kernel.sum()
    return np.asarray(ndimage.correlate(images, kernel[None, None], mode="mirror"))


def motion_blur(images: Array, draws: Draws, *, radius: float, sigma: float) -> Array:
    """A one-sided Gaussian trail at an angle from [-45°, 45°)."""
    return trailed(images, np.radians(draws.uniform(-45.0, 45.0)), radius, sigma)


def zoom_blur(images: Array, _: Draws, *, stop: float, step: float) -> Array:
    """(x + Σ_z enlarged(x, z)) / (1 + number of z), z = 1, 1 + step, ... below `stop`.

    In floating point the last z is `stop` itself for the published parameters.
    """
    zooms = np.arange(1, stop, step)
    total = images + sum(enlarged(images, float(zoom)) for zoom in zooms)
    return np.asarray(total / (1 + len(zooms)))
