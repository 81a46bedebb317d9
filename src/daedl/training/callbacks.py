"""Callbacks of `daedl.fit`, for logging, plotting or reporting."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daedl.classifier import Classifier
    from daedl.training.history import History


class Callback:
    """Base class of callbacks; any object with some of these methods works too.

    With several processes, only the first one calls the methods.
    """

    def on_fit_start(self, model: "Classifier") -> None:
        """Called before the first epoch."""

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        """Called after each epoch.

        `metrics` has `epoch` (from 0), `phase`, `train_loss`, `learning_rate`, `seconds`, and with
        validation data `val_loss` and `val_accuracy`.
        """

    def on_fit_end(self, history: "History") -> None:
        """Called after the last epoch, before post-hoc fits."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def require_callbacks(callbacks: Sequence[Any]) -> None:
    """Raises unless every callback has at least one hook."""
    for each in callbacks:
        if not any(callable(getattr(each, name, None)) for name in HOOKS):
            raise TypeError(
                f"a callback is a {type(each).__name__}; expected an object with some of the methods "
                f"{', '.join(HOOKS)}"
            )


def call(callbacks: Sequence[Any], hook: str, *arguments: Any) -> None:
    """Calls `hook` of every callback that defines it."""
    for each in callbacks:
        if (method := getattr(each, hook, None)) is not None:
            method(*arguments)
