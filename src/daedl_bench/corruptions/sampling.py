"""Reading images between their pixels: bilinear sampling, affine maps, enlargement of the middle."""

from functools import cache
from typing import Literal

import numpy as np

from daedl_bench.corruptions.draws import Array, Integers

# What lies outside of an image: black, or the image mirrored about the centre of its outermost
# pixels ("mirror") or about their outer edge ("reflect"). The names are scipy's.
Border = Literal["zero", "mirror", "reflect"]


def bilinear(images: Array, rows: Array, columns: Array, border: Border) -> Array:
    """The values of `images` (N, C, H, W) at the real-valued `rows`, `columns` (N, H', W')."""
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    down, right = (rows - top)[:, None], (columns - left)[:, None]
    upper = (1 - right) * _pixels(images, top, left, border)
    upper += right * _pixels(images, top, left + 1, border)
    lower = (1 - right) * _pixels(images, top + 1, left, border)
    lower += right * _pixels(images, top + 1, left + 1, border)
    return (1 - down) * upper + down * lower


def affine(images: Array, matrices: Array, border: Border) -> Array:
    """`images` (N, C, H, W) read at matrices · (column, row, 1), with `matrices` (N, 2, 3)."""
    height, width = images.shape[2:]
    row, column = np.mgrid[:height, :width].astype(np.float64)
    (a, b, c), (d, e, f) = matrices.transpose(1, 2, 0)[..., None, None]
    return bilinear(images, d * column + e * row + f, a * column + b * row + c, border)


def about_centre(linear: Array) -> Array:
    """The affine map (N, 2, 3) of 28 x 28 images that does `linear` (N, 2, 2) about their centre."""
    centre = np.full(2, 13.5)
    return np.concatenate([linear, (centre - linear @ centre)[..., None]], axis=-1)


def enlarged(images: Array, zoom: float) -> Array:
    """The middle of square `images` (N, C, H, H), `zoom` >= 1 times as large, linearly interpolated."""
    matrix = _enlargement(images.shape[-1], zoom)
    return matrix @ images @ matrix.T


@cache
def _enlargement(side: int, zoom: float) -> Array:
    """The matrix (side, side) that enlarges along one axis.

    The middle `kept` pixels are stretched to `size`, end on end, and the middle `side` of these are
    taken, as the published generators do. Both are whole numbers, so that tiny zooms do nothing.
    """
    kept = int(np.ceil(side / zoom))
    size = round(kept * zoom)
    taken = np.arange(side) + (size - side) // 2
    place = (side - kept) // 2 + taken * (kept - 1) / max(size - 1, 1)
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(side))))


def _pixels(images: Array, rows: Integers, columns: Integers, border: Border) -> Array:
    """The pixels (N, C, H', W') of `images` at whole `rows`, `columns` (N, H', W')."""
    height, width = images.shape[2:]
    batch = np.arange(len(images))[:, None, None]
    where = batch, slice(None), _folded(rows, height, border), _folded(columns, width, border)
    # Indices on both sides of a slice put their axes first.
    values = np.moveaxis(images[where], -1, 1)
    if border == "zero":
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        return np.where(inside[:, None], values, 0.0)
    return values


def _folded(places: Integers, size: int, border: Border) -> Integers:
    """`places` outside of 0, ..., size - 1 brought back inside."""
    if border == "zero":
        return places.clip(0, size - 1)
    period = 2 * size - 2 if border == "mirror" else 2 * size
    last = period if border == "mirror" else period - 1
    wrapped = places % period
    return np.minimum(wrapped, last - wrapped)
