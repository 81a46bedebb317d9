"""Weather: snow, frost and fog."""

import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from daedl.checks import DataWarning
from daedl_bench.corruptions.blur import enlarged, smoothed, trailed
from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.geometry import sampled

_GREY = np.array([0.299, 0.587, 0.114])[:, None, None]  # luma of ITU-R BT.601
_ICE = np.array([0.86, 0.94, 1.0])[:, None, None]  # a cold white (chosen)
# The published generator lists six pictures and draws one of the first five.
_PICTURES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
# Of `_crystals`, chosen by eye and so that the severities of frost keep their order.
_NEEDLE = (9.0, 2.5)  # spacing of the noise along and across the needles, in pixels
_SHARP = 0.13  # half the width of a needle, in standard deviations of the noise
_FILM = 0.03  # brightness of the film between needles
_PATCH = 3.0  # smoothness of the patches, in pixels
_COVER = (4.0, 1.0)  # the glass is covered by 4 · patches - 1, clipped to [0, 1]
_SOFT = 0.4  # final blur, in pixels
_GRID = 24  # side of the noise that the needles are sampled from; a rotated 32 x 32 image fits


def snow(
    images: Array,
    draws: Draws,
    *,
    mean: float,
    spread: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Array:
    """kept · x + (1 - kept) · max(x, 1.5 · grey(x) + 0.5) + flakes + flakes rotated by 180°.

    Flakes are Gaussian noise (`mean`, `spread`), enlarged by `zoom`, cut at `threshold` and
    motion-blurred (`radius`, `sigma`) downwards.
    """
    side = images.shape[-1]
    flakes = enlarged(draws.normal(mean, spread, 1, side, side), zoom)
    flakes = np.where(flakes < threshold, 0.0, flakes).clip(0.0, 1.0)
    flakes = np.floor(255 * flakes) / 255
    flakes = trailed(flakes, np.radians(draws.uniform(-135.0, -45.0)), radius, sigma)
    grey = (_GREY * images).sum(axis=1, keepdims=True)
    pale = kept * images + (1 - kept) * np.maximum(images, 1.5 * grey + 0.5)
    return np.asarray(pale + flakes + flakes[..., ::-1, ::-1])


def frost(images: Array, draws: Draws, *, kept: float, added: float) -> Array:
    """kept · x + added · ice, with crops of the published photographs of frost if they are installed."""
    pictures, side = _photographs(), images.shape[-1]
    if pictures:
        ice = _crops(pictures, draws, side)
    else:
        warnings.warn(
            "the published photographs of frost are not installed, ice is drawn instead; expected the "
            "package imagecorruptions, which contains them: pip install --no-deps imagecorruptions",
            DataWarning,
            stacklevel=3,
        )
        ice = _ICE * _crystals(draws, side)[:, None]
    return kept * images + added * ice


def stands_in(name: str) -> bool:
    """Whether the corruption is drawn, because published photographs that it needs are not installed."""
    return name == frost.__name__ and not _photographs()


def fog(images: Array, draws: Draws, *, amount: float, decay: float, side: int) -> Array:
    """(x + amount · plasma) · max(x) / (max(x) + amount).

    The plasma fractal is `side` wide; its upper left corner is used.
    """
    height, width = images.shape[2:]
    layer = plasma(draws, side, decay)[:, None, :height, :width]
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    return np.asarray((images + amount * layer) * brightest / (brightest + amount))


def plasma(draws: Draws, side: int, decay: float) -> Array:
    """Periodic diamond-square fractals (N, side, side), scaled to [0, 1].

    Midpoints are the mean of four neighbours plus uniform noise in ±a², where a starts at 100 and is
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
    return _scaled(heights)


@cache
def _photographs() -> tuple[Array, ...]:
    """The published photographs of frost (3, H, W) in [0, 1], reduced; empty if they are not installed."""
    spec = find_spec("imagecorruptions")  # located, not imported: it needs OpenCV
    if spec is None or spec.origin is None:
        return ()
    folder = Path(spec.origin).parent / "frost"
    if not all((folder / name).is_file() for name in _PICTURES):
        return ()
    pictures = [np.asarray(Image.open(folder / name).convert("RGB")) for name in _PICTURES]
    # OpenCV's bilinear reduction to 1/5 samples the centre of each 5 x 5 block.
    return tuple(picture[2::5, 2::5].transpose(2, 0, 1) / 255 for picture in pictures)


def _crops(pictures: Sequence[Array], draws: Draws, side: int) -> Array:
    """A random crop (3, side, side) of a random picture per image."""
    crops = []
    for one in draws.generators:
        picture = pictures[int(one.integers(len(pictures)))]
        top, left = (one.integers(length - side) for length in picture.shape[1:])
        crops.append(picture[:, top : top + side, left : left + side])
    return np.stack(crops)


def _crystals(draws: Draws, side: int) -> Array:
    """Needles of ice (N, side, side) in [0, 1], bright on dark glass.

    For each of three directions 60° apart, as in ice, needles follow the zeros of noise n stretched in that
    direction, with brightness exp(-(n / 0.13)²); the brightest of the three is kept. Smooth patches of the
    glass stay clear.
    """
    turn = draws.uniform(0.0, np.pi)
    rows, columns = np.mgrid[:side, :side] - (side - 1) / 2
    needles = np.zeros((len(turn), side, side))
    for direction in range(3):
        angle = (turn + direction * np.pi / 3)[:, None, None]
        along = (np.cos(angle) * columns + np.sin(angle) * rows) / _NEEDLE[0]
        aside = (np.cos(angle) * rows - np.sin(angle) * columns) / _NEEDLE[1]
        places = np.stack([aside, along], axis=1) + _GRID / 2
        noise = sampled(draws.normal(0.0, 1.0, 1, _GRID, _GRID), places, "mirror")[:, 0]
        needles = np.maximum(needles, np.exp(-((noise / _SHARP) ** 2)))
    patches = _scaled(smoothed(draws.normal(0.0, 1.0, side, side), _PATCH))
    cover = (_COVER[0] * patches - _COVER[1]).clip(0.0, 1.0)
    return smoothed((cover * (_FILM + needles)).clip(0.0, 1.0), _SOFT)


def _scaled(fields: Array) -> Array:
    """`fields` (N, H, W), each scaled to the range [0, 1]."""
    low = fields.min(axis=(1, 2), keepdims=True)
    return np.asarray((fields - low) / (fields.max(axis=(1, 2), keepdims=True) - low))
