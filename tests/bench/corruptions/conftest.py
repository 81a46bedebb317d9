"""Images to corrupt: random ones, and real ones if DAEDL_DATA is set."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from daedl_bench.corruptions import FAMILIES, weather


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


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[np.ndarray]:
    """A package imagecorruptions with flat pictures in distinct colours, that fails on import."""
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError")
    colours = np.random.default_rng(0).integers(0, 256, (5, 3), dtype=np.uint8)
    for name, colour in zip(weather._PICTURES, colours, strict=True):
        picture = Image.fromarray(np.broadcast_to(colour, (200, 250, 3)).copy())
        picture.save(folder / name, **({"quality": 100} if name.endswith("jpg") else {}))
    monkeypatch.syspath_prepend(tmp_path)
    weather.photographs.cache_clear()
    yield colours
    weather.photographs.cache_clear()
