"""The cache of trained networks and their outputs, by the key of the trial that they belong to."""

import hashlib
import json
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock
from torch import Tensor

from daedl import storage
from daedl.classifier import Classifier
from daedl.outputs import Outputs
from daedl.storage import require_folder, write_atomically
from daedl.training import History
from daedl.training.feature_cache import CacheWarning


class Cache:
    """A folder with a subfolder per trained network; every file is complete or absent, and has a digest.

    With `reading` nothing is written; otherwise the folder is created, and must be writable.
    """

    def __init__(self, folder: Path, reading: bool = False) -> None:
        if not reading:
            require_folder(folder, "choose another folder for the cache")
        self.folder, self.reading = folder, reading

    def lock(self, key: str) -> AbstractContextManager[object]:
        """A lock, so that one process at a time trains the network of `key`."""
        if self.reading:
            return nullcontext()
        (self.folder / key).mkdir(exist_ok=True)
        return FileLock(self.folder / key / ".lock")

    def checkpoint(self, key: str) -> Path:
        """The file with which the training of `key` resumes after an interruption."""
        return self.folder / key / "training.ckpt"

    def has(self, key: str) -> bool:
        """Whether the network of `key` is trained."""
        return (self.folder / key / "model.daedl").exists()

    def load(self, key: str) -> tuple[Classifier, History]:
        """The trained network of `key` and its training history."""
        place = self.folder / key
        try:
            classifier = Classifier.load(place / "model.daedl")
            return classifier, _read_history((place / "history.json").read_text("utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{place} is damaged ({error}); expected a network and a history written by a run: "
                f"delete the folder {place}, and the network is trained again"
            ) from error

    def save(self, key: str, classifier: Classifier, history: History) -> None:
        """Keep a trained network; outputs of an earlier one and the checkpoint are deleted."""
        place = self.folder / key
        for stale in place.glob("*.safetensors"):
            stale.unlink()
        # First, so that a network always has a history.
        content = asdict(history)
        text = json.dumps({"history": content, "sha256": _digest(content)})
        write_atomically(place / "history.json", text.encode())
        classifier.save(place / "model.daedl")
        self.checkpoint(key).unlink(missing_ok=True)

    def load_outputs(self, key: str, name: str) -> tuple[Outputs, Tensor] | None:
        """Outputs of the network of `key` for the dataset `name`, and the targets; None if absent.

        A damaged file, or one without a digest, counts as absent, with a warning.
        """
        path = self._outputs(key, name)
        if not path.exists():
            return None
        try:
            tensors, _ = storage.load(path)
            return Outputs(tensors["features"], tensors["logits"]), tensors["targets"]
        except (ValueError, KeyError) as error:
            message = f"{path} can't be used ({error}); its outputs are computed again"
            warnings.warn(message, CacheWarning, stacklevel=2)
            return None

    def save_outputs(self, key: str, name: str, outputs: Outputs, targets: Tensor) -> None:
        """Keep outputs, unless the cache is for reading only."""
        if not self.reading:
            tensors = {"features": outputs.features, "logits": outputs.logits, "targets": targets}
            storage.save(self._outputs(key, name), tensors, {"kind": "outputs"})

    def _outputs(self, key: str, name: str) -> Path:
        return self.folder / key / f"{name.replace('/', '_')}.safetensors"


def _read_history(text: str) -> History:
    stored = json.loads(text)
    if not isinstance(stored, dict) or "sha256" not in stored:  # written before there was a digest
        return msgspec.convert(stored, History)
    if stored["sha256"] != _digest(stored.get("history")):
        raise ValueError("the history does not match its digest")
    return msgspec.convert(stored["history"], History)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
