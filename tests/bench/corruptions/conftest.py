"""Images to corrupt: random ones, and real ones if DAEDL_DATA is set."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from daedl_bench.corruptions import FAMILIES


def scenes(count: int, channels: int, side: int) -> Tensor:
    """Smooth random images with a few edges: light and shade, some colour, a dark shape."""
    random = np.random.default_rng(0)
    sigmas = (0, 0, 1.5, 1.5)
    light = ndimage.gaussian_filter(random.normal(size=(count, 1, side, side)), sigmas)
    colour = ndimage.gaussian_filter(random.normal(size=(count, channels, side, side)), sigmas)
    shape = ndimage.gaussian_filter(random.normal(size=(count, 1, side, side)), (0, 0, 4, 4)) > 0
    values = 0.6 + 0.8 * light + 0.3 * colour - 0.2 * shape
    return torch.from_numpy((255 * values.clip(0, 1)).astype(np.uint8))


@pytest.fixture(scope="session")
def pictures() -> dict[str, Tensor]:
    """48 images per family."""
    return {name: scenes(48, family.channels, family.side) for name, family in FAMILIES.items()}


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with real data; tests that need it are skipped without."""
    root = os.environ.get("DAEDL_DATA")
    if not root:
        pytest.skip("DAEDL_DATA is not set")
    return Path(root)
