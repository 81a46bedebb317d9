"""Spatter: drops of water or mud on the lens."""

import numpy as np
from scipy import ndimage

from daedl_bench.corruptions.blur import smoothed
from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.edges import Mask, canny_bytes

# Constants of the published generators.
_WATER = np.array([175, 238, 238])[:, None, None] / 255  # pale turquoise
_MUD = np.array([63, 42, 20])[:, None, None] / 255  # brown; its first channel for grey images
_RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])  # light from the upper left
_FAR = 20.0  # distances from a drop's rim are cut here, in pixels
_THIN = 0.8  # mud that covers less is left out


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
    """Drops of water that shine with the strength `water`, or of mud with rims `mud` pixels soft.

    Drops are Gaussian noise (`mean`, `spread`), smoothed by `sigma` and cut at `threshold`. The liquid
    whose parameter is 0 is absent.
    """
    liquid = _liquid(draws, images.shape[-1], mean, spread, sigma, threshold)
    if water > 0:
        images = _wet(images, liquid, water)
    if mud > 0:
        images = _muddy(images, liquid, mud)
    return images


def _muddy(images: Array, liquid: Array, softness: float) -> Array:
    """(1 - m) · x + m · mud, with m the drops, blurred by `softness`, where at least 0.8."""
    cover = smoothed((liquid > 0).astype(np.float64), softness, softness)
    cover = np.where(cover < _THIN, 0.0, cover)[:, None]
    return np.asarray((1 - cover) * images + cover * _MUD[: images.shape[1]])


def _wet(images: Array, liquid: Array, strength: float) -> Array:
    """x + strength · m · water, with m the drops, lit along their rims and scaled to a maximum of 1."""
    levels = np.floor(255 * liquid)
    rims = canny_bytes(levels, low=50, high=150)
    drops = levels * np.stack([_relief(each) for each in rims])
    most = drops.max(axis=(1, 2), keepdims=True)
    return images + strength * (drops / np.where(most > 0, most, 1.0))[:, None] * _WATER


def _liquid(
    draws: Draws, side: int, mean: float, spread: float, sigma: float, threshold: float
) -> Array:
    """Smoothed noise (N, side, side) where it reaches `threshold`, else 0."""
    layer = smoothed(draws.normal(mean, spread, side, side), sigma, sigma)
    return np.where(layer < threshold, 0.0, layer)


def _relief(rim: Mask) -> Array:
    """Grey levels (H, W) of drops lit from one side, from the pixels of their rims (H, W)."""
    distance = np.full(rim.shape, _FAR)
    if rim.any():
        distance = np.minimum(ndimage.distance_transform_edt(~rim), _FAR)
    levels = _equalised(np.floor(ndimage.uniform_filter(distance, 3, mode="mirror")))
    lit = ndimage.correlate(levels, _RELIEF, mode="mirror").clip(0, 255)
    return np.asarray(np.rint(ndimage.uniform_filter(lit, 3, mode="mirror")))


def _equalised(levels: Array) -> Array:
    """Histogram equalisation: 255 · share of the pixels below or at the level, the lowest at 0."""
    values, place, counts = np.unique(levels, return_inverse=True, return_counts=True)
    if len(values) == 1:
        return levels
    below = np.cumsum(counts) - counts[0]
    return np.asarray(np.rint(255 * below / below[-1])[place].reshape(levels.shape))
