"""Training several methods on the same data, with progress messages."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from daedl.classifier import Classifier
from daedl.methods import Method
from daedl.networks import Network
from daedl.training import History, fit

Samples = tuple[Tensor, Tensor]  # inputs (N, ...) and classes (N,)


@dataclass(frozen=True)
class Training:
    """Arguments of `daedl.fit`."""

    max_epochs: int
    batch_size: int
    patience: int
    learning_rate: float = 1e-3
    lr_decay: float = 0.95


@dataclass(frozen=True)
class Trained:
    """A trained classifier, its training history, and the seconds that training took."""

    classifier: Classifier
    history: History
    seconds: float


@dataclass(frozen=True)
class Progress:
    """Progress messages: one line per training, and the progress bars of `fit`; none unless `show`."""

    console: Console = field(default_factory=Console)
    show: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Shows nothing in other processes, which have no terminal."""
        return _silent, ()

    def starts(self, title: str) -> None:
        """Announce a training."""
        if self.show:
            self.console.print(f"[bold]{title}[/bold]")

    def ends(self, trained: Trained) -> None:
        """Print the result of a training."""
        if self.show:
            epochs = trained.history.epochs
            accuracy = epochs[trained.history.best_epoch].val_accuracy or 0.0
            took = f"{len(epochs)} epochs in {trained.seconds:.1f} s"
            self.console.print(f"  {took}, validation accuracy {accuracy:.1%}")

    def fails(self, what: str) -> None:
        """Report an error after which the run continues."""
        if self.show:
            self.console.print(f"failed: {what}", style="red", markup=False)


def _silent() -> Progress:
    return Progress(show=False)


SILENT = _silent()


def train_methods(
    experiment: str,
    plan: Mapping[Method, Training],
    network: Callable[[], Network],
    train: Samples,
    val: Samples,
    seed: int,
    progress: Progress = SILENT,
) -> dict[str, Trained]:
    """Train each method of `plan` from the same initial weights; returns them by method name.

    Arguments:
        experiment: title of the progress messages.
        network: builds an untrained network.
        seed: determines initial weights and the order of the samples.
    """
    trained = {}
    for method, training in plan.items():
        progress.starts(f"{experiment} · {method.name}")
        started = time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            classifier = Classifier(network(), method)
        # The networks are too small to gain from a GPU.
        # Without a terminal, `fit` would print a line per epoch.
        bars = progress.show and progress.console.is_terminal
        options: dict[str, Any] = {"seed": seed, "accelerator": "cpu", "progress": bars}
        history = fit(classifier, train, val, **options, **vars(training))
        trained[method.name] = Trained(classifier, history, time.perf_counter() - started)
        progress.ends(trained[method.name])
    return trained
