"""Seeds epochs reproducibly and preserves the global random states."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """Seeds Python, NumPy and PyTorch from (seed, epoch, rank)."""
    stream = int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0])
    random.seed(stream)
    np.random.seed(stream)  # noqa: NPY002 (users' datasets may draw from the global generator)
    if torch.accelerator.is_available():
        torch.manual_seed(stream)
    else:  # it would keep the seed and a stack trace for GPUs, as long as several steps of a small network
        torch.default_generator.manual_seed(stream)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restores the global random states of Python, NumPy and PyTorch at the end of the context."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
