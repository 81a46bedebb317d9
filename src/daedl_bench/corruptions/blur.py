"""Blurs: each pixel becomes a mean of pixels around it, or changes places with one."""

import numpy as np
from scipy import ndimage

from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.sampling import enlarged

# Weights of a motion blur below this cannot change a grey level, even all together.
_NEGLIGIBLE = 1e-5
# Grey levels that fall short of a whole number by less are whole: sums in floating point do.
_ROUNDING = 1e-6


def gaussian_blur(images: Array, draws: Draws, *, sigma: float) -> Array:  # noqa: ARG001
    """x * Gauss(sigma)."""
    return smoothed(images, sigma, sigma)


def smoothed(images: Array, rows: float, columns: float) -> Array:
    """Images blurred with standard deviations `rows` down and `columns` across, edges repeated."""
    sigmas = (*(0.0,) * (images.ndim - 2), rows, columns)
    return np.asarray(ndimage.gaussian_filter(images, sigmas, mode="nearest"))


def glass_blur(
    images: Array,
    draws: Draws,
    *,
    sigma: float,
    sigma_across: float,
    reach: int,
    rounds: int,
    chance: float,
    exchange: bool,
) -> Array:
    """Blur, move pixels about, blur again.

    From the lower right to the upper left, each pixel meets one up to `reach` above and left of it
    (less than `reach` below and right), with probability `chance`; the two change places if
    `exchange`, else the first becomes like the second.
    """
    pixels = np.floor(255 * smoothed(images, sigma, sigma_across)).transpose(2, 3, 0, 1).copy()
    height, width, count, _ = pixels.shape
    everyone = np.arange(count)
    moves = draws.integers(-reach, reach, rounds, height, width, 2)
    # A pixel that meets itself stays: no chance is no move.
    moves *= draws.uniform(0.0, 1.0, rounds, height, width, 1) < chance
    for turn in range(rounds):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                other = (
                    row + moves[:, turn, row, column, 0],
                    column + moves[:, turn, row, column, 1],
                )
                found = pixels[(*other, everyone)]
                if exchange:
                    pixels[(*other, everyone)] = pixels[row, column]
                pixels[row, column] = found
    return smoothed(pixels.transpose(2, 3, 0, 1) / 255, sigma, sigma_across)


def defocus_blur(images: Array, draws: Draws, *, radius: float, softness: float) -> Array:  # noqa: ARG001
    """x * disk(radius), the disk itself blurred by 3 x 3 Gaussian weights of width `softness`."""
    reach = int(radius) + 1
    row, column = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (row**2 + column**2 <= radius**2).astype(np.float64)
    soft = np.exp(-np.array([1.0, 0.0, 1.0]) / (2 * softness**2))
    kernel = ndimage.convolve(disk, np.outer(soft, soft), mode="constant")
    kernel /= kernel.sum()
    return np.asarray(ndimage.correlate(images, kernel[None, None], mode="mirror"))


def motion_blur(images: Array, draws: Draws, *, radius: float, sigma: float) -> Array:
    """A one-sided Gaussian trail at an angle from [-45°, 45°)."""
    return trailed(images, np.radians(draws.uniform(-45.0, 45.0)), radius, sigma)


def trailed(images: Array, angles: Array, radius: float, sigma: float) -> Array:
    """Σ_i w_i · x at i steps in the direction of `angles` (N,), w_i ∝ exp(-i² / 2 sigma²), edges repeated.

    i runs from 0 to 2 · radius; steps are rounded to whole pixels, and the result down to one of 256
    levels, as ImageMagick does.
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


def zoom_blur(images: Array, draws: Draws, *, stop: float, step: float) -> Array:  # noqa: ARG001
    """(x + Σ_z enlarged(x, z)) / (1 + number of z), z = 1, 1 + step, ... below `stop`.

    In floating point the last z is `stop` itself for the published parameters.
    """
    zooms = np.arange(1, stop, step)
    total = images + sum(enlarged(images, float(zoom)) for zoom in zooms)
    return np.asarray(total / (1 + len(zooms)))
