"""Random numbers for a batch, drawn per image, so that results do not depend on the batch size."""

from collections.abc import Callable
from zlib import crc32

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Draws:
    """One generator per image, seeded with (seed, key, severity, index of the image).

    Every method returns an array of shape (N, *shape), whose rows come from the images' generators.
    """

    def __init__(self, seed: int, key: str, severity: int, first: int, count: int) -> None:
        """Create generators for the images `first`, ..., `first + count - 1` of a dataset."""
        start = (seed, crc32(key.encode()), severity)
        self.generators = tuple(
            np.random.Generator(np.random.PCG64(np.random.SeedSequence((*start, index))))
            for index in range(first, first + count)
        )

    def normal(self, loc: float, scale: float, *shape: int) -> Array:
        """Gaussian numbers with mean `loc` and standard deviation `scale`."""
        return self._stack(lambda one: one.normal(loc, scale, shape))

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        """Uniform numbers in [low, high)."""
        return self._stack(lambda one: one.uniform(low, high, shape))

    def integers(self, low: int, high: int, *shape: int) -> Integers:
        """Uniform integers from `low` to `high - 1`."""
        return np.stack([one.integers(low, high, shape) for one in self.generators])

    def signs(self, *shape: int) -> Array:
        """-1 or 1 with equal probability."""
        return np.asarray(2 * self.integers(0, 2, *shape) - 1, dtype=np.float64)

    def poisson(self, mean: Array) -> Array:
        """Poisson counts with expectations `mean` (N, ...)."""
        pairs = zip(self.generators, mean, strict=True)
        return np.stack([one.poisson(each) for one, each in pairs]).astype(np.float64)

    def _stack(self, draw: Callable[[np.random.Generator], Array]) -> Array:
        return np.stack([draw(one) for one in self.generators])
