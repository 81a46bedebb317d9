"""Noise: each pixel for itself. Images x are (N, C, H, W) in [0, 1] here and in the files beside."""

import numpy as np

from daedl_bench.corruptions.draws import Array, Draws


def gaussian_noise(images: Array, draws: Draws, *, scale: float) -> Array:
    """x + scale · n, with n standard normal."""
    return images + draws.normal(0.0, scale, *images.shape[1:])


def shot_noise(images: Array, draws: Draws, *, photons: float) -> Array:
    """Poisson(photons · x) / photons: the fewer `photons` a white pixel gets, the noisier."""
    return draws.poisson(images * photons) / photons


def impulse_noise(images: Array, draws: Draws, *, amount: float) -> Array:
    """A share `amount` of the values becomes 0 or 1 with equal chances, each channel for itself."""
    chance = draws.uniform(0.0, 1.0, *images.shape[1:])
    # One number decides both: below amount/2 pepper, from there to amount salt.
    return np.where(chance < amount, (chance >= amount / 2).astype(np.float64), images)


def speckle_noise(images: Array, draws: Draws, *, scale: float) -> Array:
    """x + scale · x · n, with n standard normal."""
    return images + images * draws.normal(0.0, scale, *images.shape[1:])
