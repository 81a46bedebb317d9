"""Canny's edge detector, in the two forms that the published generators use."""

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from daedl_bench.corruptions.draws import Array

Mask = npt.NDArray[np.bool_]
_SQUARE = np.zeros((3, 3, 3), dtype=bool)
_SQUARE[1] = True  # the eight neighbours within an image, none across images


def canny(images: Array, *, sigma: float, low: float, high: float) -> Mask:
    """Edges of `images` (N, H, W) in [0, 1], as scikit-image defines them.

    Gaussian smoothing with what lies outside left out of account, Sobel gradients, Euclidean
    magnitude; a pixel stays if no value interpolated along the gradient exceeds its own; the border
    of one pixel is no edge.
    """
    sigmas = (0.0, sigma, sigma)
    smooth = ndimage.gaussian_filter(images, sigmas, mode="constant")
    smooth /= ndimage.gaussian_filter(np.ones_like(images), sigmas, mode="constant")
    down, across = _gradients(smooth, "reflect")
    size = np.hypot(down, across)
    ridge = _interpolated_ridge(size, down, across)
    ridge[:, [0, -1]] = ridge[:, :, [0, -1]] = False
    return _connected(ridge & (size >= low), ridge & (size >= high))


def canny_bytes(levels: Array, *, low: float, high: float) -> Mask:
    """Edges of images (N, H, W) of grey levels 0 to 255, as OpenCV defines them.

    No smoothing, Sobel gradients, |down| + |across| as magnitude; a pixel stays if it exceeds its
    two neighbours in the nearest of four directions.
    """
    down, across = _gradients(levels, "nearest")
    size = np.abs(down) + np.abs(across)
    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(across)
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(across)
    falling = down * across >= 0
    ridge = np.where(falling, _exceeds(size, 1, 1, True), _exceeds(size, 1, -1, True))
    ridge = np.where(steep, _exceeds(size, 1, 0, False), ridge)
    ridge = np.where(flat, _exceeds(size, 0, 1, False), ridge)
    return _connected(ridge & (size > low), ridge & (size > high))


def _gradients(images: Array, mode: str) -> tuple[Array, Array]:
    """Sobel's differences (N, H, W) down and across; ndimage.sobel would smooth from image to image."""
    smooth, difference = (1.0, 2.0, 1.0), (-1.0, 0.0, 1.0)
    down = ndimage.correlate1d(images, difference, axis=1, mode=mode)
    across = ndimage.correlate1d(images, difference, axis=2, mode=mode)
    return (
        ndimage.correlate1d(down, smooth, axis=2, mode=mode),
        ndimage.correlate1d(across, smooth, axis=1, mode=mode),
    )


def _exceeds(size: Array, rows: int, columns: int, both: bool) -> Mask:
    """Where `size` exceeds the neighbour before it, and is not below the one after (or exceeds `both`)."""
    before, after = _neighbour(size, -rows, -columns), _neighbour(size, rows, columns)
    return np.asarray((size > before) & ((size > after) if both else (size >= after)))


def _interpolated_ridge(size: Array, down: Array, across: Array) -> Mask:
    """Where `size` (N, H, W) is a maximum along its gradient (`down`, `across`)."""
    steep = np.abs(down) >= np.abs(across)
    same = down * across >= 0
    larger = np.maximum(np.abs(down), np.abs(across))
    slant = np.minimum(np.abs(down), np.abs(across)) / np.where(larger > 0, larger, 1.0)
    ridge = np.ones(size.shape, dtype=bool)
    for sign in (1, -1):
        diagonal = np.where(same, _neighbour(size, sign, sign), _neighbour(size, sign, -sign))
        level = np.where(same, _neighbour(size, 0, sign), _neighbour(size, 0, -sign))
        straight = np.where(steep, _neighbour(size, sign, 0), level)
        ridge &= slant * diagonal + (1 - slant) * straight <= size
    return ridge


def _neighbour(size: Array, rows: int, columns: int) -> Array:
    """`size` (N, H, W) at the neighbour `rows` down and `columns` across, 0 outside."""
    height, width = size.shape[1:]
    padded = np.pad(size, ((0, 0), (1, 1), (1, 1)))
    return padded[:, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]


def _connected(weak: Mask, strong: Mask) -> Mask:
    """The connected parts of `weak` (N, H, W) that hold a pixel of `strong`."""
    parts, count = ndimage.label(weak, _SQUARE)
    keep = np.zeros(count + 1, dtype=bool)
    keep[parts[strong]] = True
    keep[0] = False
    return np.asarray(keep[parts])
