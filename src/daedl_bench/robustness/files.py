"""Fuzzed model files, checkpoints, cached outputs, histories and rows, and pickles in their place."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import daedl
from daedl import storage
from daedl.checks import NotFittedError
from daedl.classifier import Classifier
from daedl.model import Model
from daedl.networks import MLP, ConvNet, Network, WhitenNet
from daedl.training.checkpoint import Checkpoint
from daedl_bench import results
from daedl_bench.cache import Cache
from daedl_bench.robustness._damage import damaged, flipped, payload, redescribed
from daedl_bench.robustness._place import Figure, Place
from daedl_bench.robustness.tiny import saved

MODELS: tuple[tuple[str, type[Network]], ...] = (
    *(("daedl", ConvNet), ("daedl", MLP), ("softmax", WhitenNet), ("knn", MLP)),
    *(("ensemble", MLP), ("dropout", MLP), ("natpn", MLP), ("daer", MLP)),
)
# Files per model with a changed description, and per kind with damage of some bytes and of one bit.
DESCRIBED, DAMAGED, FLIPPED = 300, 250, 200


class Kind(NamedTuple):
    """A kind of file: `read` returns its content as bytes, b"" if there is none to be used."""

    path: Path
    read: Callable[[], bytes]
    digest: bool = True


def measure(place: Place) -> list[Figure]:
    """Every file must be refused with a ValueError, or be loaded and predict finite numbers.

    A file with a digest that was damaged must be refused, or mean the same as before.
    """
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for method, network in MODELS:
        _describe(place, method, network, counts)
    marker = place.folder / "executed"
    for kind in _kinds(place.folder):
        valid, meant = kind.path.read_bytes(), kind.read()
        for content in (*_variants(place, valid), payload(marker)):
            kind.path.write_bytes(content)
            read = _try(counts, kind.read)
            counts["taken"] += bool(kind.digest and read and read != meant)
        kind.path.write_bytes(valid)
        torch.save({"a": torch.zeros(1)}, kind.path)
        _try(counts, kind.read)
        kind.path.write_bytes(valid)
    return [
        Figure("files", counts["files"]),
        Figure("refused with a reason", counts["refused"]),
        Figure("other errors", counts["unclear"], 0),
        Figure("files loaded that do not predict finite numbers", counts["unusable"], 0),
        Figure("damaged files whose content was used", counts["taken"], 0),
        Figure("pickles executed", marker.exists(), 0),
    ]


def _variants(place: Place, valid: bytes) -> Iterator[bytes]:
    draw = place.draw()
    yield from (damaged(draw, valid) for _ in range(place.count(DAMAGED)))
    yield from (flipped(draw, valid) for _ in range(place.count(FLIPPED)))


def _try(counts: Counter[str], read: Callable[[], bytes]) -> bytes:
    counts["files"] += 1
    try:
        content = read()
    except (ValueError, NotFittedError):
        content = b""
    except Exception as error:
        counts["unclear"] += 1
        print(f"unclear: {type(error).__name__}: {error}")
        return b""
    counts["refused"] += not content
    return content


def _describe(place: Place, method: str, network: type[Network], counts: Counter[str]) -> None:
    """Models with another description and a valid digest."""
    path, draw = place.folder / "described.daedl", place.draw()
    # In another file, because these tensors are parts of it.
    tensors, description = saved(place.folder / "valid.daedl", method, network)

    loaded: list[Model[Any]] = []

    def load() -> bytes:
        loaded[:] = [daedl.load(path)]
        return b"loaded"

    for _ in range(place.count(DESCRIBED)):
        # Waiting until each file is on the disk would take most of the time.
        path.write_bytes(storage.encoded(tensors, redescribed(draw, description)))
        if _try(counts, load):
            counts["unusable"] += not _predicts(loaded[0])


def _predicts(model: Model[Any]) -> bool:
    """Whether predictions of zeros are finite numbers."""
    try:
        records = model.predict(torch.zeros(2, *model.network.input_shape)).records()
        json.dumps(records, allow_nan=False)
    except Exception as error:
        print(f"unusable: {type(error).__name__}: {error}")
        return False
    return True


def _kinds(folder: Path) -> Iterator[Kind]:
    model, again = folder / "model.daedl", folder / "again.daedl"
    saved(model)

    def read_model() -> bytes:
        Classifier.load(model).save(again)
        return again.read_bytes()

    yield Kind(model, read_model)
    torch.manual_seed(0)
    data = torch.rand(60, 4), torch.arange(60) % 3
    classifier, checkpoint = daedl.Classifier(MLP(4, 3, hidden=(8,))), folder / "training.ckpt"
    history = daedl.fit(classifier, data, data, max_epochs=2, checkpoint=checkpoint, progress=False)

    def read_checkpoint() -> bytes:
        Checkpoint.load(checkpoint).save(again)
        return again.read_bytes()

    yield Kind(checkpoint, read_checkpoint)
    cache = Cache(folder / "cache")
    with cache.lock("key"):
        cache.save("key", classifier, replace(history, density_effect=None))
    cache.save_outputs("key", "test", *classifier.collect(data))

    def read_outputs() -> bytes:
        loaded = cache.load_outputs("key", "test")
        return (
            b""
            if loaded is None
            else str([each.tolist() for each in (*loaded[0][:2], loaded[1])]).encode()
        )

    yield Kind(folder / "cache" / "key" / "test.safetensors", read_outputs)
    yield Kind(
        folder / "cache" / "key" / "history.json", lambda: str(cache.load("key")[1]).encode()
    )
    rows = folder / "rows.jsonl"
    figures = ("e", "m", "d", "t", "s", "metric", 1.0, 0, 1.0, "2", "0", "c", 1)
    results.save(rows, [results.Row(*figures), results.Row(*figures)])
    yield Kind(rows, partial(_read_rows, rows), digest=False)


def _read_rows(path: Path) -> bytes:
    return str(results.load(path)).encode()
