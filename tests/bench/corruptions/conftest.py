"""Images to corrupt: made at random, and real ones where DAEDL_DATA says where they are."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor


def scenes(count: int, channels: int, side: int) -> Tensor:
    """Smooth random images with a few edges: light and shade, a little colour, a dark shape."""
    random = np.random.default_rng(0)
    sigmas = (0, 0, 1.5, 1.5)
    light = ndimage.gaussian_filter(random.normal(size=(count, 1, side, side)), sigmas)
    colour = ndimage.gaussian_filter(random.normal(size=(count, channels, side, side)), sigmas)
    shape = ndimage.gaussian_filter(random.normal(size=(count, 1, side, side)), (0, 0, 4, 4)) > 0
    values = 0.6 + 0.8 * light + 0.3 * colour - 0.2 * shape
    return torch.from_numpy((255 * values.clip(0, 1)).astype(np.uint8))


@pytest.fixture(scope="session")
def pictures() -> dict[str, Tensor]:
    """A few dozen images for each family."""
    return {"mnist-c": scenes(24, 1, 28), "cifar10-c": scenes(48, 3, 32)}


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data; tests that need it are skipped without."""
    root = os.environ.get("DAEDL_DATA")
    if not root:
        pytest.skip("DAEDL_DATA is not set")
    return Path(root)
