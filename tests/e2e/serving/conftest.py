"""A small calibrated model of 8x8 images."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from PIL import Image

import daedl
from daedl.networks import ConvNet
from daedl.serving import create_app

NAMES = ["row", "column", "diagonal"]
Encode = Callable[..., bytes]


def draw_lines(number: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `number` noisy white lines on black (N, 1, 8, 8), uint8, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % len(NAMES)
    images = rng.normal(20, 10, (number, 8, 8))
    for image, label in zip(images, labels, strict=True):
        position = rng.integers(2, 6)
        index = [(position, slice(None)), (slice(None), position), (np.arange(8), np.arange(8))]
        image[index[label]] += 200
    pixels = torch.from_numpy(images.clip(0, 255).astype(np.uint8))
    return pixels.unsqueeze(1), torch.from_numpy(labels)


@pytest.fixture(scope="session")
def model() -> daedl.Classifier:
    """DAEDL, trained briefly, fitted and calibrated."""
    torch.manual_seed(0)
    images, labels = draw_lines(240)
    network = ConvNet(1, 3, 8, channels=8, hidden=(16,))
    classifier = daedl.Classifier(network, "daedl", NAMES, leave_one_out=True)
    batches = list(zip((images / 255).split(32), labels.split(32), strict=True))
    daedl.fit(classifier, batches, max_epochs=12, learning_rate=3e-3, progress=False)
    new, targets = draw_lines(90, seed=1)
    classifier.calibrate([(new / 255, targets)], daedl.MaxRejectionRate(0.1))
    return classifier.eval()


@pytest.fixture(scope="session")
def app(model: daedl.Classifier) -> FastAPI:
    return create_app(model)


@pytest.fixture(scope="session")
def pixels() -> torch.Tensor:
    """New images (6, 1, 8, 8), uint8, two per class."""
    return draw_lines(6, seed=2)[0]


@pytest.fixture(scope="session")
def noise() -> np.ndarray:
    """An image (8, 8), uint8, unlike the training data."""
    return np.random.default_rng(3).integers(0, 256, (8, 8)).astype(np.uint8)


@pytest.fixture(scope="session")
def encode() -> Encode:
    """Encodes pixels as a file: `encode(pixels, "JPEG")`."""

    def write(pixels: torch.Tensor | np.ndarray | Image.Image, kind: str = "PNG", **more) -> bytes:
        if isinstance(pixels, torch.Tensor):
            pixels = pixels.squeeze().numpy()
        image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
        buffer = BytesIO()
        image.save(buffer, kind, **more)
        return buffer.getvalue()

    return write
