"""Random textures: the plasma fractal of fog, and ice crystals for frost."""

import numpy as np

from daedl_bench.corruptions.blur import smoothed
from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.sampling import bilinear

# Of `crystals`, chosen by eye and so that severities of frost keep their order.
_NEEDLE = (9.0, 2.5)  # spacing of the noise along and across the needles, in pixels
_SHARP = 0.13  # half the width of a needle, in standard deviations of the noise
_FILM = 0.03  # brightness of the film between needles
_PATCH = 3.0  # smoothness of the patches, in pixels
_COVER = (4.0, 1.0)  # the glass is covered by 4 · patches - 1, cut to [0, 1]
_SOFT = 0.4  # blur of the whole, in pixels
_GRID = 24  # side of the noise that the needles are read from: a turned 32 x 32 image fits


def plasma(draws: Draws, side: int, decay: float) -> Array:
    """Diamond-square fractals (N, side, side) that wrap around, stretched to [0, 1].

    Midpoints are the mean of four neighbours plus even noise in ±a², where a starts at 100 and is
    divided by `decay` at each halving. `side` is a power of two.
    """
    heights = np.zeros((len(draws.generators), side, side))
    step, amplitude = side, 100.0
    while step >= 2:
        half, bound = step // 2, amplitude**2
        count = side // step
        corners = heights[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=1)
        across = corners + np.roll(corners, -1, axis=2)
        squares = pairs + np.roll(pairs, -1, axis=2)
        noise = draws.uniform(-bound, bound, 3, count, count)
        centres = squares / 4 + noise[:, 0]
        heights[:, half::step, half::step] = centres
        above = across + centres + np.roll(centres, 1, axis=1)
        beside = pairs + centres + np.roll(centres, 1, axis=2)
        heights[:, ::step, half::step] = above / 4 + noise[:, 1]
        heights[:, half::step, ::step] = beside / 4 + noise[:, 2]
        step, amplitude = half, amplitude / decay
    return _stretched(heights)


def crystals(draws: Draws, side: int) -> Array:
    """Needles of ice (N, side, side) in [0, 1], bright on dark glass.

    For each of three directions 60° apart, as in ice, needles run where noise n stretched in that
    direction crosses 0, with the brightness exp(-(n / 0.13)²); the brightest of the three is kept.
    Smooth patches of the glass stay clear.
    """
    turn = draws.uniform(0.0, np.pi)
    rows, columns = np.mgrid[:side, :side] - (side - 1) / 2
    needles = np.zeros((len(turn), side, side))
    for direction in range(3):
        angle = (turn + direction * np.pi / 3)[:, None, None]
        along = (np.cos(angle) * columns + np.sin(angle) * rows) / _NEEDLE[0]
        aside = (np.cos(angle) * rows - np.sin(angle) * columns) / _NEEDLE[1]
        noise = draws.normal(0.0, 1.0, 1, _GRID, _GRID)
        found = bilinear(noise, aside + _GRID / 2, along + _GRID / 2, "mirror")[:, 0]
        needles = np.maximum(needles, np.exp(-((found / _SHARP) ** 2)))
    patches = _stretched(smoothed(draws.normal(0.0, 1.0, side, side), _PATCH, _PATCH))
    cover = (_COVER[0] * patches - _COVER[1]).clip(0.0, 1.0)
    return smoothed((cover * (_FILM + needles)).clip(0.0, 1.0), _SOFT, _SOFT)


def _stretched(fields: Array) -> Array:
    """`fields` (N, H, W) with the least value of each at 0 and the largest at 1."""
    low = fields.min(axis=(1, 2), keepdims=True)
    return np.asarray((fields - low) / (fields.max(axis=(1, 2), keepdims=True) - low))
