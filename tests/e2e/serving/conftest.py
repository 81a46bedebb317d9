"""A small calibrated model of 8x8 images, and servers in threads."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import pytest
import torch
import uvicorn
from fastapi import FastAPI
from PIL import Image

import daedl
from daedl.networks import ConvNet
from daedl.serving import Settings, server

NAMES = ["row", "column", "diagonal"]


def drawn(number: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """`number` noisy white lines on black (N, 1, 8, 8), uint8, and which kind each is."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % len(NAMES)
    images = rng.normal(20, 10, (number, 8, 8))
    for image, label in zip(images, labels, strict=True):
        place = rng.integers(2, 6)
        lines = image[place], image[:, place], image[np.arange(8), np.arange(8)]
        lines[label][:] += 200
        if label == 2:  # indices give a copy
            image[np.arange(8), np.arange(8)] += 200
    pixels = torch.from_numpy(images.clip(0, 255).astype(np.uint8))
    return pixels.unsqueeze(1), torch.from_numpy(labels)


@pytest.fixture(scope="session")
def model() -> daedl.Classifier:
    """DAEDL, trained for a moment, fitted and calibrated."""
    torch.manual_seed(0)
    images, labels = drawn(240)
    network = ConvNet(1, 3, 8, channels=8, hidden=(16,))
    classifier = daedl.Classifier(network, "daedl", NAMES, leave_one_out=True)
    batches = list(zip((images / 255).split(32), labels.split(32), strict=True))
    daedl.fit(classifier, batches, max_epochs=12, learning_rate=3e-3, progress=False)
    new, truth = drawn(90, seed=1)
    classifier.calibrate([(new / 255, truth)], daedl.MaxRejectionRate(0.1))
    return classifier.eval()


@pytest.fixture(scope="session")
def pixels() -> torch.Tensor:
    """New images (6, 1, 8, 8), uint8, two of each kind."""
    return drawn(6, seed=2)[0]


@pytest.fixture(scope="session")
def png() -> Callable[..., bytes]:
    """Writes pixels as a file: `png(pixels, "JPEG")`."""

    def write(pixels: torch.Tensor | np.ndarray | Image.Image, kind: str = "PNG", **more) -> bytes:
        if isinstance(pixels, torch.Tensor):
            pixels = pixels.squeeze().numpy()
        image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
        buffer = BytesIO()
        image.save(buffer, kind, **more)
        return buffer.getvalue()

    return write


@pytest.fixture(scope="session")
def running() -> Callable[..., object]:
    """Serves an app at a free port, in a thread: `with running(app) as address`."""

    @contextmanager
    def run(app: FastAPI) -> Iterator[str]:
        with server.listen("127.0.0.1", 0) as listening:
            serving = uvicorn.Server(server.configuration(app, Settings()))
            thread = threading.Thread(target=serving.run, args=([listening],))
            thread.start()
            while not serving.started:
                assert thread.is_alive()
                time.sleep(0.01)
            try:
                yield server.address(listening)
            finally:
                serving.should_exit = True
                thread.join()

    return run
