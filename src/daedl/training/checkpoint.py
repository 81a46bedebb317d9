"""Training checkpoints: where a run stood after its last finished epoch."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from daedl.storage import write_atomically


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to go on as if it had never stopped.

    Attributes:
        run: what identifies the run; another run's checkpoint is refused.
        phase: the number of the method's phase that it stood in.
        earlier, epochs: the history of the phases before, and of this one so far, plain mappings.
        best_epoch: the zero-based epoch whose weights `best` holds.
        network, best: state dictionaries of the network now and at its best.
        optimizer, scheduler, precision: their state dictionaries.
        generators: states of the training loader's own random generators.
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
        """Write to `path` atomically."""
        buffer = io.BytesIO()
        torch.save({name: getattr(self, name) for name in self.__dataclass_fields__}, buffer)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """Read a checkpoint from `path`; no code in the file is run."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            return cls(**content)
        except Exception as error:
            raise ValueError(
                f"{path} is not a whole training checkpoint ({error}); expected one written by "
                "daedl.fit(checkpoint=...): delete it to start again"
            ) from error

    def require(self, path: Path, run: dict[str, Any]) -> None:
        """Raise unless this checkpoint, which `path` holds, is that of `run`."""
        different = [key for key in run if self.run.get(key) != run[key]]
        if different:
            said = ", ".join(
                f"{key} {self.run.get(key)!r} there, {run[key]!r} here" for key in different
            )
            raise ValueError(
                f"{path} is the checkpoint of another run ({said}); expected the same settings to "
                "resume: delete it to start again, or choose another file for this run"
            )
