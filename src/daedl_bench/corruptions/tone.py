"""Brightness, contrast and saturation, uniform over the image."""

import numpy as np
from skimage.color import hsv2rgb, rgb2hsv

from daedl_bench.corruptions.draws import Array, Draws


def brightness(images: Array, _: Draws, *, added: float) -> Array:
    """V + added in HSV; x + added for grey images."""
    return images + added if images.shape[1] == 1 else _in_hsv(images, 2, 1.0, added)


def contrast(images: Array, _: Draws, *, factor: float) -> Array:
    """m + factor · (x - m), with m the mean of the channel."""
    mean = images.mean(axis=(2, 3), keepdims=True)
    return np.asarray(mean + factor * (images - mean))


def saturate(images: Array, _: Draws, *, factor: float, added: float) -> Array:
    """factor · S + added in HSV, which tints grey pixels red, their hue being 0."""
    return _in_hsv(images, 1, factor, added)


def _in_hsv(images: Array, channel: int, factor: float, added: float) -> Array:
    hsv = rgb2hsv(images, channel_axis=1)
    hsv[:, channel] = (factor * hsv[:, channel] + added).clip(0.0, 1.0)
    return np.asarray(hsv2rgb(hsv, channel_axis=1))
