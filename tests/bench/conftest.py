"""Experiments on one thread, so that their numbers repeat."""

import secrets
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session")
def ray_token() -> str:
    """The token of all of Ray's clusters: a process keeps the first one that it reads."""
    return secrets.token_hex(32)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
