"""Tone: brightness, contrast and colour, the same everywhere in the image."""

import numpy as np

from daedl_bench.corruptions.draws import Array, Draws


def brightness(images: Array, draws: Draws, *, added: float) -> Array:  # noqa: ARG001
    """V + added in the hue, saturation, value model: x · (V + added) / V with V the largest channel.

    A grey image is its own V, so that this is x + added.
    """
    value = images.max(axis=1, keepdims=True)
    lifted = np.minimum(value + added, 1.0)
    # A channel may be divided by its own maximum without fear: black is handled apart.
    share = images / np.where(value > 0, value, 1.0)
    return np.asarray(np.where(value > 0, share * lifted, lifted))


def contrast(images: Array, draws: Draws, *, factor: float) -> Array:  # noqa: ARG001
    """m + factor · (x - m) with m the mean of the image's channel."""
    mean = images.mean(axis=(2, 3), keepdims=True)
    return np.asarray(mean + factor * (images - mean))


def saturate(images: Array, draws: Draws, *, factor: float, added: float) -> Array:  # noqa: ARG001
    """S becomes factor · S + added in the hue, saturation, value model: V - (V - x) · S' / S.

    Grey has no hue; as in the published generator it counts as red, so `added` tints it.
    """
    value = images.max(axis=1, keepdims=True)
    spread = value - images.min(axis=1, keepdims=True)
    saturation = spread / np.where(value > 0, value, 1.0)
    wanted = (factor * saturation + added).clip(0.0, 1.0)
    red = np.array([0.0, 1.0, 1.0])[:, None, None]
    distance = np.where(spread > 0, (value - images) / np.where(spread > 0, spread, 1.0), red)
    return np.asarray(value * (1 - wanted * distance))
