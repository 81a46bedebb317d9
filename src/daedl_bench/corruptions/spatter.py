"""Spatter: drops of water or mud on the lens."""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from daedl_bench.corruptions.blur import smoothed
from daedl_bench.corruptions.draws import Array, Draws

Mask = npt.NDArray[np.bool_]
# Constants of the published generators.
_WATER = np.array([175, 238, 238])[:, None, None] / 255  # pale turquoise
_MUD = np.array([63, 42, 20])[:, None, None] / 255  # brown; its first channel for grey images
_RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])  # light from the upper left
_FAR = 20.0  # limit of the distance from the rim of a drop, in pixels
_THIN = 0.8  # mud with less coverage is left out


def spatter(
    images: Array,
    draws: Draws,
    *,
    mean: float,
    spread: float,
    sigma: float,
    threshold: float,
    water: float,
    mud: float,
) -> Array:
    """Drops of water with brightness `water`, or of mud with rims `mud` pixels soft; 0 leaves them out.

    Drops are Gaussian noise (`mean`, `spread`), smoothed by `sigma` and cut at `threshold`.
    """
    side = images.shape[-1]
    layer = smoothed(draws.normal(mean, spread, side, side), sigma)
    drops = np.where(layer < threshold, 0.0, layer)
    if water > 0:
        return _with_water(images, drops, water)
    return _with_mud(images, drops, mud)


def _with_mud(images: Array, drops: Array, softness: float) -> Array:
    """(1 - m) · x + m · mud, with m the drops, blurred by `softness`, where at least 0.8."""
    cover = smoothed((drops > 0).astype(np.float64), softness)
    cover = np.where(cover < _THIN, 0.0, cover)[:, None]
    return np.asarray((1 - cover) * images + cover * _MUD[: images.shape[1]])


def _with_water(images: Array, drops: Array, strength: float) -> Array:
    """x + strength · m · water, with m the drops, lit along their rims and scaled to a maximum of 1."""
    levels = np.floor(255 * drops)
    lit = levels * np.stack([_relief(_edges(each, low=50, high=150)) for each in levels])
    most = lit.max(axis=(1, 2), keepdims=True)
    return images + strength * (lit / np.where(most > 0, most, 1.0))[:, None] * _WATER


def _edges(levels: Array, *, low: float, high: float) -> Mask:
    """Edges of grey levels (H, W) as in cv2.Canny, which skimage.feature.canny cannot reproduce.

    No smoothing, |down| + |across| of Sobel's gradients as magnitude; a pixel remains if it exceeds its two
    neighbours in the nearest of four directions, and is connected to one above `high`.
    """
    down, across = (ndimage.sobel(levels, axis, mode="nearest") for axis in (0, 1))
    size = np.abs(down) + np.abs(across)
    height, width = size.shape
    padded = np.pad(size, 1)

    def exceeds(rows: int, columns: int, strictly: bool) -> Mask:
        before, after = (
            padded[1 + s * rows :, 1 + s * columns :][:height, :width] for s in (-1, 1)
        )
        return np.asarray((size > before) & ((size > after) if strictly else (size >= after)))

    ridge = np.where(down * across >= 0, exceeds(1, 1, True), exceeds(1, -1, True))
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(across)
    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(across)
    ridge = np.select([flat, steep], [exceeds(0, 1, False), exceeds(1, 0, False)], ridge)
    parts, _ = ndimage.label(ridge & (size > low), np.ones((3, 3)))
    strong = np.unique(parts[ridge & (size > high)])
    return np.isin(parts, strong)


def _relief(rim: Mask) -> Array:
    """Grey levels (H, W) of drops lit from one side, from the pixels of their rims (H, W)."""
    distance = np.full(rim.shape, _FAR)
    if rim.any():
        distance = np.minimum(ndimage.distance_transform_edt(~rim), _FAR)
    levels = _equalized(np.floor(ndimage.uniform_filter(distance, 3, mode="mirror")))
    lit = ndimage.correlate(levels, _RELIEF, mode="mirror").clip(0, 255)
    return np.asarray(np.rint(ndimage.uniform_filter(lit, 3, mode="mirror")))


def _equalized(levels: Array) -> Array:
    """Histogram equalisation as in OpenCV: the lowest level becomes 0, the highest 255."""
    values, place, counts = np.unique(levels, return_inverse=True, return_counts=True)
    if len(values) == 1:
        return levels
    below = np.cumsum(counts) - counts[0]
    return np.asarray(np.rint(255 * below / below[-1])[place].reshape(levels.shape))
