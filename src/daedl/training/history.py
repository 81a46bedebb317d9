"""Results of training."""

from dataclasses import dataclass

from daedl.density import DensityEffect


@dataclass(frozen=True)
class Epoch:
    """Results of one epoch. Losses are means over samples; `val_*` are None without validation data.

    `phase` names the training phase, for methods with several. Up to `chance_level`, `val_accuracy` is no
    better than chance; it is None if the validation data are of one class.
    """

    train_loss: float
    val_loss: float | None
    val_accuracy: float | None
    learning_rate: float
    seconds: float
    phase: str = "training"
    chance_level: float | None = None

    def __str__(self) -> str:
        text = f"loss {self.train_loss:.4f}"
        if self.val_loss is not None:
            text += f", validation {self.val_loss:.4f}"
        if self.val_accuracy is not None:
            text += f", accuracy {self.val_accuracy:.2%}"
        return text


@dataclass(frozen=True)
class History:
    """Results of `fit`.

    Attributes:
        epochs: one record per epoch, of all phases.
        best_epoch: zero-based epoch with the lowest validation loss of the last phase, whose weights were
            kept; the last epoch without validation data.
        stopped_early: whether early stopping ended the last phase.
        density_effect: effect of the density on the validation data, for methods with a density.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    stopped_early: bool
    density_effect: DensityEffect | None = None
