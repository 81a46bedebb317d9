"""Settings of a training run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from daedl.checks import require_above_zero, require_whole
from daedl.data.batches import Batch
from daedl.storage import require_folder


@dataclass(frozen=True)
class Plan:
    """Settings of a training run; see `fit`.

    `scheduler` is called with the optimiser, the maximum number of epochs, and the number of batches per
    epoch (None if unknown).
    """

    max_epochs: int
    optimizer: Callable[[Iterable[Tensor]], Optimizer]
    scheduler: Callable[[Optimizer, int, int | None], LRScheduler]
    patience: int
    gradient_clip: float | None
    seed: int
    checkpoint: Path | None
    resume: bool
    progress: bool
    resume_key: Mapping[str, Any]
    class_weights: Tensor | None = None
    callbacks: Sequence[Any] = ()

    def validate(self, train: Iterable[Batch]) -> None:
        """Raises for settings that would otherwise fail during or after training."""
        require_whole("max_epochs", self.max_epochs, 1, "50 as published")
        require_whole("patience", self.patience, 1, "10")
        require_whole("seed", self.seed, 0, "0")
        if self.gradient_clip is not None:
            require_above_zero("gradient_clip", self.gradient_clip, "1.0, or None for no limit")
        if self.checkpoint is None:
            if self.resume:
                raise ValueError(
                    "resume=True without a checkpoint; expected checkpoint='run.ckpt' too"
                )
            return
        if self.checkpoint.exists() and not self.resume:
            raise FileExistsError(
                f"checkpoint {self.checkpoint} already exists; expected a new file: pass resume=True to "
                "continue from it, or delete it to start again"
            )
        require_folder(
            self.checkpoint.parent, "choose another one for the checkpoint", create=False
        )
        if getattr(train, "persistent_workers", False):
            raise ValueError(
                "the training loader has persistent_workers=True, whose random states a checkpoint can't "
                "store; expected persistent_workers=False, so that a resumed run repeats them"
            )
