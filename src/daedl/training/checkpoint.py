"""Training checkpoints: the state after the last completed epoch.

A file starts with `HEAD` and the SHA-256 digest of the rest, which is in the format of `torch.save`. That
format does not detect damaged weights. Earlier versions wrote neither; their files can be read too.
"""

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from daedl.storage import write_atomically

HEAD = b"daedl checkpoint\n"


@dataclass(frozen=True)
class Checkpoint:
    """The complete state of a run, which resumes exactly.

    Attributes:
        run: identity of the run; checkpoints of other runs are rejected.
        phase: number of the method's current phase.
        earlier, epochs: epochs of the previous phases and of the current one, as mappings.
        best_epoch: zero-based epoch of the weights in `best`.
        network, best: state dictionaries of the network, current and best.
        optimizer, scheduler, precision: their state dictionaries.
        generators: states of the training loader's random generators.
    """

    run: dict[str, Any]
    phase: int
    earlier: list[dict[str, Any]]
    epochs: list[dict[str, Any]]
    best_epoch: int
    network: dict[str, Any]
    best: dict[str, Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    precision: dict[str, Any]
    generators: list[torch.Tensor]

    def save(self, path: Path) -> None:
        """Writes the checkpoint to `path` atomically."""
        buffer = io.BytesIO()
        torch.save({name: getattr(self, name) for name in self.__dataclass_fields__}, buffer)
        data = buffer.getvalue()
        write_atomically(path, HEAD + hashlib.sha256(data).digest() + data)

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Reads a checkpoint from `path` without running code from the file."""
        try:
            stream = io.BytesIO(_verified(path.read_bytes()))
            content = torch.load(stream, map_location="cpu", weights_only=True)
            msgspec.convert(
                content, cls
            )  # validates types; the state dictionaries stay as they are
            return cls(**content)
        except Exception as error:
            raise ValueError(
                f"{path} is damaged or not a training checkpoint ({error}); expected a file written by "
                "daedl.fit(checkpoint=...): delete it to start again"
            ) from error

    def require(self, path: Path, run: dict[str, Any]) -> None:
        """Raises unless this checkpoint, read from `path`, belongs to `run`."""
        differences = [
            f"{key} is {self.run.get(key)!r} in the checkpoint, {value!r} in this run"
            for key, value in run.items()
            if self.run.get(key) != value
        ]
        if differences:
            raise ValueError(
                f"{path} is the checkpoint of another run ({', '.join(differences)}); expected the same "
                "settings to resume: delete it to start again, or choose another file for this run"
            )


def _verified(data: bytes) -> bytes:
    """Returns what `torch.save` wrote; raises if it does not match the digest."""
    if not data.startswith(HEAD):
        return data
    start = len(HEAD) + hashlib.sha256().digest_size
    if hashlib.sha256(data[start:]).digest() != data[len(HEAD) : start]:
        raise ValueError("its contents do not match the digest")
    return data[start:]
