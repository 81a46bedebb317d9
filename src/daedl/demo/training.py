"""One method trained on one data set, the step that every experiment here shares."""

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

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Training:
    """How to train: arguments of `daedl.fit`."""

    max_epochs: int
    batch_size: int
    patience: int
    learning_rate: float = 1e-3
    lr_decay: float = 0.95


@dataclass(frozen=True)
class Trained:
    """A trained classifier, how training went and the seconds that it took."""

    classifier: Classifier
    history: History
    seconds: float

    @property
    def epochs(self) -> int:
        """Epochs that were run."""
        return len(self.history.epochs)


@dataclass(frozen=True)
class Progress:
    """Where and whether to say how far an experiment is: a line a method, then the bars of `fit`."""

    console: Console = field(default_factory=Console)
    show: bool = True

    def starts(self, title: str) -> None:
        """A method's training begins."""
        if self.show:
            self.console.print(f"[bold]{title}[/bold]")

    def fails(self, what: str) -> None:
        """Something failed, and the rest goes on."""
        if self.show:
            self.console.print(f"failed: {what}", style="red", markup=False)

    def ends(self, trained: Trained) -> None:
        """A method's training is done."""
        if self.show:
            history = trained.history
            accuracy = history.epochs[history.best_epoch].val_accuracy or 0.0
            self.console.print(
                f"  {trained.epochs} epochs in {trained.seconds:.1f} s, "
                f"validation accuracy {accuracy:.1%}"
            )


SILENT = Progress(show=False)


def train_methods(
    experiment: str,
    plan: Mapping[Method, Training],
    network: Callable[[], Network],
    train: Samples,
    val: Samples,
    *,
    seed: int,
    progress: Progress = SILENT,
) -> Mapping[str, Trained]:
    """Train each method of `plan` on (inputs, targets) from the same initial weights.

    Returns them by the method's name. `network` builds a new network; `seed` decides its weights and
    the order of the samples.
    """
    trained = {}
    for method, training in plan.items():
        progress.starts(f"{experiment} · {method.name}")
        trained[method.name] = _train(method, network, train, val, training, seed, progress.show)
        progress.ends(trained[method.name])
    return trained


def _train(
    method: Method,
    network: Callable[[], Network],
    train: Samples,
    val: Samples,
    training: Training,
    seed: int,
    bars: bool,
) -> Trained:
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = Classifier(network(), method)
    options: dict[str, Any] = vars(training)
    # These networks are too small for a GPU to help.
    history = fit(classifier, train, val, seed=seed, accelerator="cpu", progress=bars, **options)
    return Trained(classifier, history, time.perf_counter() - started)
