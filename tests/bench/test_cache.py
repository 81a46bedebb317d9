"""The cache of networks and outputs: flipped bits in any file are detected."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from daedl.classifier import Classifier
from daedl.networks import MLP
from daedl.outputs import Outputs
from daedl.training import Epoch, History
from daedl.training.feature_cache import CacheWarning
from daedl_bench.cache import Cache

KEY = "0123"
OUTPUTS = Outputs(torch.arange(6.0).view(3, 2), torch.ones(3, 4))
TARGETS = torch.tensor([0, 1, 3])
HISTORY = History((Epoch(0.7, None, None, 1e-3, 2.5), Epoch(0.25, 0.5, 0.75, 1e-3, 2.0)), 1, False)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path)
    with cache.lock(KEY):
        cache.save(KEY, Classifier(MLP(2, 4, [2]), "softmax"), HISTORY)
    cache.save_outputs(KEY, "dots", OUTPUTS, TARGETS)
    return cache


def flips(path: Path) -> Iterator[int]:
    """Flips one bit of every third byte in turn."""
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        yield position


def test_files_are_read_as_written(cache):
    outputs, targets = cache.load_outputs(KEY, "dots")
    assert torch.equal(outputs.features, OUTPUTS.features)
    assert torch.equal(outputs.logits, OUTPUTS.logits)
    assert torch.equal(targets, TARGETS)
    assert cache.load(KEY)[1] == HISTORY


def test_a_flipped_bit_in_outputs_is_detected_and_they_are_computed_again(cache):
    for _ in flips(cache.folder / KEY / "dots.safetensors"):
        with pytest.warns(CacheWarning, match="computed again"):
            assert cache.load_outputs(KEY, "dots") is None
    cache.save_outputs(KEY, "dots", OUTPUTS, TARGETS)
    assert cache.load_outputs(KEY, "dots") is not None


def test_a_flipped_bit_in_the_history_is_detected(cache):
    for _ in flips(cache.folder / KEY / "history.json"):
        with pytest.raises(ValueError, match="damaged"):
            cache.load(KEY)


def test_outputs_without_a_digest_are_computed_again(cache):
    tensors = {"features": OUTPUTS.features, "logits": OUTPUTS.logits, "targets": TARGETS}
    safetensors.torch.save_file(tensors, cache.folder / KEY / "dots.safetensors")
    with pytest.warns(CacheWarning, match="computed again"):
        assert cache.load_outputs(KEY, "dots") is None


def test_a_history_without_a_digest_is_read(cache):
    """The cache of an earlier version: its networks need not be trained again."""
    path = cache.folder / KEY / "history.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8"))["history"]), "utf-8")
    assert cache.load(KEY)[1] == HISTORY


@pytest.mark.parametrize("change", [{"epochs": 3}, {"best_epoch": "one"}, {"stopped_early": None}])
def test_a_history_with_values_of_another_type_is_rejected(cache, change):
    path = cache.folder / KEY / "history.json"
    content = json.loads(path.read_text("utf-8"))["history"]
    path.write_text(json.dumps(content | change), "utf-8")
    with pytest.raises(ValueError, match="delete the folder"):
        cache.load(KEY)
