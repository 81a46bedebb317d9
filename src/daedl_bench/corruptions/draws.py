"""Random numbers of a batch, drawn image by image, so that the batch's size leaves no trace."""

from collections.abc import Callable
from zlib import crc32

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Draws:
    """One generator an image, seeded with (seed, key, severity, index of the image).

    Every method draws an array of shape (N, *shape), the part of each image from its own generator.
    """

    def __init__(self, seed: int, key: str, severity: int, first: int, count: int) -> None:
        """Generators for the images `first`, ..., `first + count - 1` of a set."""
        start = (seed, crc32(key.encode()), severity)
        self.generators = tuple(
            np.random.Generator(np.random.PCG64(np.random.SeedSequence((*start, index))))
            for index in range(first, first + count)
        )

    def normal(self, loc: float, scale: float, *shape: int) -> Array:
        """Gaussian numbers of mean `loc` and standard deviation `scale`."""
        return self._stack(lambda one: one.normal(loc, scale, shape))

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        """Numbers evenly from [low, high)."""
        return self._stack(lambda one: one.uniform(low, high, shape))

    def integers(self, low: int, high: int, *shape: int) -> Integers:
        """Whole numbers evenly from `low`, ..., `high - 1`."""
        return np.stack([one.integers(low, high, shape) for one in self.generators])

    def signs(self, *shape: int) -> Array:
        """-1 or 1 with equal chances."""
        return np.asarray(2 * self.integers(0, 2, *shape) - 1, dtype=np.float64)

    def poisson(self, mean: Array) -> Array:
        """Counts with the expectations `mean` (N, ...)."""
        pairs = zip(self.generators, mean, strict=True)
        return np.stack([one.poisson(each) for one, each in pairs]).astype(np.float64)

    def _stack(self, draw: Callable[[np.random.Generator], Array]) -> Array:
        return np.stack([draw(one) for one in self.generators])
