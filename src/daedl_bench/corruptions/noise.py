"""Noise, independent per pixel and channel. Images x are (N, C, H, W) in [0, 1] in all modules."""

import numpy as np

from daedl_bench.corruptions.draws import Array, Draws


def gaussian_noise(images: Array, draws: Draws, *, scale: float) -> Array:
    """x + scale · n, with n standard normal."""
    return images + draws.normal(0.0, scale, *images.shape[1:])


def shot_noise(images: Array, draws: Draws, *, photons: float) -> Array:
    """Poisson(photons · x) / photons."""
    return draws.poisson(images * photons) / photons


def impulse_noise(images: Array, draws: Draws, *, amount: float) -> Array:
    """A fraction `amount` of the values is replaced by 0 or 1 with equal probability."""
    chance = draws.uniform(0.0, 1.0, *images.shape[1:])
    # One number decides both: pepper below amount / 2, salt from there to amount.
    return np.where(chance < amount, (chance >= amount / 2).astype(np.float64), images)


def speckle_noise(images: Array, draws: Draws, *, scale: float) -> Array:
    """x + scale · x · n, with n standard normal."""
    return images + images * draws.normal(0.0, scale, *images.shape[1:])
