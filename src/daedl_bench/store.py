"""The cache of trained networks and their outputs, by the digest of what they were made from."""

import json
from collections.abc import Callable
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


class Store:
    """A folder with a subfolder for each trained network; every file is whole or absent.

    It is made, and tried whether it can be written to, unless it is only for `reading`: then nothing is
    written to it.
    """

    def __init__(self, folder: Path, reading: bool = False) -> None:
        if not reading:
            require_folder(folder, "choose another folder for the cache")
        self.folder, self.reading = folder, reading

    def _place(self, key: str) -> Path:
        place = self.folder / key
        if not self.reading:
            place.mkdir(exist_ok=True)
        return place

    def checkpoint(self, key: str) -> Path:
        """Where the training of `key` leaves its checkpoint, to go on after an interruption."""
        return self._place(key) / "training.ckpt"

    def classifier(self, key: str, train: Callable[[], tuple[Classifier, History]]) -> Classifier:
        """The trained classifier of `key`, trained now if it isn't there; then its checkpoint goes."""
        place = self._place(key)
        path = place / "model.daedl"
        if self.reading:  # a lock would be written
            return self._load(path)
        # Of several runs one trains, the others wait for its network.
        with FileLock(place / ".lock"):
            if path.exists():
                return self._load(path)
            classifier, history = train()
            for stale in place.glob("*.safetensors"):  # of a network that was deleted
                stale.unlink()
            # First, so that no model is ever without it.
            write_atomically(self._history(key), json.dumps(asdict(history)).encode())
            classifier.save(path)
            self.checkpoint(key).unlink(missing_ok=True)
        return classifier

    def has(self, key: str) -> bool:
        """Whether the network of `key` is trained."""
        return (self.folder / key / "model.daedl").exists()

    def _load(self, path: Path) -> Classifier:
        try:
            return Classifier.load(path)
        except ValueError as error:
            raise ValueError(
                f"{error} (this one is in the cache: delete the folder {path.parent}, and it is "
                "trained again)"
            ) from error

    def history(self, key: str) -> History:
        """How the training of `key` went, which is done."""
        path = self._history(key)
        try:
            found = json.loads(path.read_text("utf-8"))
            epochs = tuple(Epoch(**each) for each in found["epochs"])
            return History(epochs, found["best_epoch"], found["stopped_early"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a training's history ({error}); expected one written by a run: delete "
                f"the folder {path.parent}, and the network is trained again"
            ) from error

    def _history(self, key: str) -> Path:
        return self._place(key) / "history.json"

    def outputs(
        self, key: str, name: str, collect: Callable[[], tuple[Outputs, Tensor]]
    ) -> tuple[Outputs, Tensor]:
        """Outputs of the network of `key` on the data `name`, and the targets; collected if need be."""
        path = self._place(key) / f"{name.replace('/', '_')}.safetensors"
        if path.exists():
            try:
                found = safetensors.torch.load_file(path)
                return Outputs(found["features"], found["logits"]), found["targets"]
            except (SafetensorError, KeyError) as error:
                raise ValueError(
                    f"{path} is not a whole file of outputs ({error}); expected one written by a run: "
                    "delete it, and it is made again"
                ) from error
        outputs, targets = collect()
        if not self.reading:
            tensors = {"features": outputs.features, "logits": outputs.logits, "targets": targets}
            write_atomically(path, safetensors.torch.save(tensors))
        return outputs, targets
