"""Shared fixtures; all tests use one thread and fixed examples: results do not depend on machine or run."""

import multiprocessing
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import hypothesis
import pytest
import torch

from daedl.data import ImageSet

torch.set_num_threads(1)
# The same examples in every run, so that a change fails because of what it changes. Others:
# `pytest --hypothesis-profile=default`.
hypothesis.settings.register_profile("fixed", derandomize=True)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(scope="session")
def blobs():
    """Three classes of 4-dimensional features, unequal in size, spread and shape."""
    generator = torch.Generator().manual_seed(0)
    features, targets = [], []
    for c, count in enumerate((400, 150, 60)):
        mixing = torch.randn(4, 4, generator=generator)
        center = 3 * torch.randn(4, generator=generator)
        features.append(torch.randn(count, 4, generator=generator) @ mixing + center)
        targets.append(torch.full((count,), c))
    order = torch.randperm(610, generator=generator)
    return torch.cat(features)[order], torch.cat(targets)[order]


class Interrupting:
    """Batches that raise KeyboardInterrupt after a number of them."""

    def __init__(self, batches, after):
        self.batches, self.left = batches, after

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield batch


@pytest.fixture(scope="session")
def interrupting():
    """Wraps batches to simulate Ctrl-C: `interrupting(batches, after)`."""
    return Interrupting


@pytest.fixture
def two_processes() -> Iterator[dict[str, Any]]:
    """Options of `fit` for two processes that import nothing, unlike spawned ones."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("needs fork")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        yield {"accelerator": "cpu", "devices": 2, "strategy": "ddp_fork"}


@pytest.fixture
def colours() -> ImageSet:
    """Ten images (3, 6, 5) with random pixels, labels 0 to 9."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (10, 3, 6, 5), dtype=torch.uint8, generator=generator)
    return ImageSet(images, torch.arange(10), "colours", "test")


@pytest.fixture
def little_memory() -> Callable[[], AbstractContextManager[None]]:
    """A context that fails if more than 8 MB are allocated."""

    @contextmanager
    def limited() -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < 8e6
        finally:
            tracemalloc.stop()

    return limited
