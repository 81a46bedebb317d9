"""The cache of trained networks and their outputs, by the key of the trial that they belong to."""

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
from filelock import FileLock
from safetensors import SafetensorError
from torch import Tensor

from daedl.classifier import Classifier
from daedl.outputs import Outputs
from daedl.storage import require_folder, write_atomically
from daedl.training import Epoch, History


class Cache:
    """A folder with a subfolder per trained network; every file is complete or absent.

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
            found = json.loads((place / "history.json").read_text("utf-8"))
            epochs = tuple(Epoch(**each) for each in found["epochs"])
            return classifier, History(epochs, found["best_epoch"], found["stopped_early"])
        except (ValueError, KeyError, TypeError) as error:
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
        write_atomically(place / "history.json", json.dumps(asdict(history)).encode())
        classifier.save(place / "model.daedl")
        self.checkpoint(key).unlink(missing_ok=True)

    def load_outputs(self, key: str, name: str) -> tuple[Outputs, Tensor] | None:
        """Outputs of the network of `key` for the dataset `name`, and the targets; None if absent."""
        path = self._outputs(key, name)
        if not path.exists():
            return None
        try:
            found = safetensors.torch.load_file(path)
            return Outputs(found["features"], found["logits"]), found["targets"]
        except (SafetensorError, KeyError) as error:
            raise ValueError(
                f"{path} is not a whole file of outputs ({error}); expected one written by a run: "
                "delete it, and it is computed again"
            ) from error

    def save_outputs(self, key: str, name: str, outputs: Outputs, targets: Tensor) -> None:
        """Keep outputs, unless the cache is for reading only."""
        if not self.reading:
            tensors = {"features": outputs.features, "logits": outputs.logits, "targets": targets}
            write_atomically(self._outputs(key, name), safetensors.torch.save(tensors))

    def _outputs(self, key: str, name: str) -> Path:
        return self.folder / key / f"{name.replace('/', '_')}.safetensors"
