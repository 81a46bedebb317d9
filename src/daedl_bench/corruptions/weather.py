"""Weather: snow, frost and fog."""

import numpy as np

from daedl_bench.corruptions.blur import trailed
from daedl_bench.corruptions.draws import Array, Draws
from daedl_bench.corruptions.sampling import enlarged
from daedl_bench.corruptions.textures import crystals, plasma

_GREY = np.array([0.299, 0.587, 0.114])[:, None, None]  # luma of ITU-R BT.601
_ICE = np.array([0.86, 0.94, 1.0])[:, None, None]  # a cold white (chosen)


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
    """kept · x + (1 - kept) · max(x, 1.5 · grey(x) + 0.5) + flakes + flakes turned by 180°.

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
    """kept · x + added · ice, where ice is a procedural texture and not a photograph."""
    return kept * images + added * _ICE * crystals(draws, images.shape[-1])[:, None]


def fog(images: Array, draws: Draws, *, amount: float, decay: float, side: int) -> Array:
    """(x + amount · plasma) · max(x) / (max(x) + amount).

    The plasma fractal is made `side` wide and its upper left corner is used.
    """
    height, width = images.shape[2:]
    layer = plasma(draws, side, decay)[:, None, :height, :width]
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    return np.asarray((images + amount * layer) * brightest / (brightest + amount))
