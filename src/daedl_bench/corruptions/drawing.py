"""Lines over MNIST's digits, stripes, and the digits' edges."""

from itertools import pairwise

import numpy as np
from skimage.feature import canny

from daedl_bench.corruptions.draws import Array, Draws

# Constants of the published generator, for 28 x 28 images.
_SIDE = 28
_HALF_WIDTH = 2.3  # pixels from the centre of a line to the zero of its logarithm's argument


def stripe(images: Array, _: Draws, *, columns: int) -> Array:
    """1 - x in the first and last `columns`."""
    result = images.copy()
    for part in (slice(None, columns), slice(-columns, None)):
        result[..., part] = 1 - images[..., part]
    return result


def dotted_line(images: Array, draws: Draws, *, dash: int) -> Array:
    """x + a line from left to right between two random heights, `dash` columns off, `dash` columns on."""
    first, last = draws.integers(0, _SIDE - 1, 2).T.astype(np.float64)
    on = np.arange(_SIDE) // dash % 2 == 1
    return np.asarray(images + on * _line(0 * first, first, 0 * last + _SIDE - 1, last))


def zigzag(images: Array, draws: Draws, *, length: float, width: float) -> Array:
    """x + a zigzag between columns 2 and 25; a bend every 2 · `length`, `width` to either side.

    It starts at a random height and rises by up to five rows or falls by up to four.
    """
    left, right = 2.0, 25.0
    start = draws.integers(0, _SIDE - 1).astype(np.float64)
    slope = np.arctan(draws.integers(-5, 5) / (right - left))
    total = (right - left) / np.cos(slope)
    # The number of bends is the same for all slopes that can occur.
    bends = int((right - left - length) // (2 * length)) + 1
    along = [0 * total, *((2 * i + 1) * length + 0 * total for i in range(bends)), total]
    aside = [0 * total, *((-1) ** i * width + 0 * total for i in range(bends))]
    rest = total - 2 * length * (total // (2 * length))
    aside.append(aside[-1] / (2 * rest))
    ends = [
        (
            left + np.cos(slope) * u - np.sin(slope) * v,
            start + np.sin(slope) * u + np.cos(slope) * v,
        )
        for u, v in zip(along, aside, strict=True)
    ]
    result = images
    for (column0, row0), (column1, row1) in pairwise(ends):
        result = np.minimum(result + _line(column0, row0, column1, row1), 1.0)
    return result


def canny_edges(images: Array, _: Draws, *, sigma: float, low: float, high: float) -> Array:
    """White where Canny's detector reports an edge, black elsewhere."""
    edges = [canny(image, sigma, low, high) for image in images[:, 0]]  # type: ignore[no-untyped-call]
    return np.stack(edges)[:, None].astype(np.float64)


def _line(column0: Array, row0: Array, column1: Array, row1: Array) -> Array:
    """Soft lines (N, 1, 28, 28): 1 + ln(1 - d / 2.3) where positive, d the vertical distance."""
    rows, columns = np.mgrid[:_SIDE, :_SIDE].astype(np.float64)
    column0, row0, column1, row1 = (part[:, None, None] for part in (column0, row0, column1, row1))
    height = row0 + (row1 - row0) / (column1 - column0) * (columns - column0)
    distance = np.minimum(np.abs(rows - height), _HALF_WIDTH * (1 - 1e-9))
    ink = (1 + np.log(1 - distance / _HALF_WIDTH)).clip(0.0, 1.0)
    within = (columns >= np.floor(column0)) & (columns < np.ceil(column1))
    return np.asarray(ink * within)[:, None]
