"""Weather: snow, frost and fog."""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from daedl_bench.corruptions.blur import enlarged, trailed
from daedl_bench.corruptions.draws import Array, Draws

_GREY = np.array([0.299, 0.587, 0.114])[:, None, None]  # luma of ITU-R BT.601
# The published generator lists six pictures and draws one of the first five.
_PICTURES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")


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
    """kept · x + added · ice, with crops of the published photographs of frost."""
    pictures = photographs()
    if not pictures:
        raise FileNotFoundError(
            "the published photographs of frost are not installed; expected the package imagecorruptions, "
            "which contains them: pip install --no-deps imagecorruptions"
        )
    return kept * images + added * _crops(pictures, draws, images.shape[-1])


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
def photographs() -> tuple[Array, ...]:
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


def _scaled(fields: Array) -> Array:
    """`fields` (N, H, W), each scaled to the range [0, 1]."""
    low = fields.min(axis=(1, 2), keepdims=True)
    return np.asarray((fields - low) / (fields.max(axis=(1, 2), keepdims=True) - low))
