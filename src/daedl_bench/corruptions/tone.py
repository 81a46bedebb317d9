"""Brightness, contrast and saturation, uniform over the image."""

import numpy as np
from skimage.color import hsv2rgb, rgb2hsv

from daedl_bench.corruptions.corruption import Corruption
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


CORRUPTIONS = (
    Corruption("mnist-c", brightness, "Every pixel brighter by one half.", {"added": 0.5}),
    Corruption(
        "cifar10-c",
        brightness,
        "Brighter, with the same hue.",
        {"added": (0.05, 0.1, 0.15, 0.2, 0.3)},
    ),
    Corruption(
        "cifar10-c", contrast, "Closer to the mean colour.", {"factor": (0.75, 0.5, 0.4, 0.3, 0.15)}
    ),
    Corruption(
        "cifar10-c",
        saturate,
        "Less saturated (1 and 2) or more (3 to 5).",
        {"factor": (0.3, 0.1, 1.5, 2, 2.5), "added": (0, 0, 0, 0.1, 0.2)},
        no_farther=(3,),
    ),
)
