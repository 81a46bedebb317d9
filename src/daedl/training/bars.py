"""Progress of training: bars on a terminal, otherwise one line per epoch."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from daedl.data.batches import Batch
from daedl.data.loaders import count

# Seconds between lines within an epoch where the output is no terminal (chosen).
INTERVAL = 60.0


class Bars:
    """Shows nothing; the subclasses show the progress of epochs and batches."""

    def batches(self, train: Iterable[Batch], epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch, counted from 0."""
        del epoch
        yield from train

    def epoch_done(self, note: str) -> None:
        """Shows `note`, the results of the epoch."""


class TerminalBars(Bars):
    """A bar for the epochs and one for the batches of the current epoch."""

    def __init__(self, progress: Progress, max_epochs: int, done: int) -> None:
        self.progress = progress
        self.all = progress.add_task("epochs", total=max_epochs, completed=done, note="")
        self.one = progress.add_task("batches", note="")

    def batches(self, train: Iterable[Batch], epoch: int) -> Iterator[Batch]:
        """Yields the batches and advances their bar."""
        self.progress.reset(self.one, total=count(train), description=f"epoch {epoch + 1}")
        for batch in train:
            yield batch
            self.progress.advance(self.one)

    def epoch_done(self, note: str) -> None:
        """Advances the bar of the epochs."""
        self.progress.update(self.all, advance=1, note=note)


class Lines(Bars):
    """One line per epoch with the remaining time, and one per `INTERVAL` within long epochs."""

    def __init__(self, max_epochs: int, done: int) -> None:
        self.max_epochs, self.before, self.epoch = max_epochs, done, done
        self.started = time.perf_counter()

    def batches(self, train: Iterable[Batch], epoch: int) -> Iterator[Batch]:
        """Yields the batches; prints their number in intervals."""
        self.epoch = epoch
        total = count(train)
        started = last = time.perf_counter()
        for number, batch in enumerate(train, 1):
            yield batch
            now = time.perf_counter()
            if now - last >= INTERVAL:
                last = now
                text = f"batch {number}"
                if total is not None:
                    left = (now - started) / number * (total - number)
                    text += f" of {total}, {_duration(left)} left in this epoch"
                self._print(text)

    def epoch_done(self, note: str) -> None:
        """Prints the results of the epoch and the time of the remaining ones."""
        done = self.epoch + 1
        seconds = (time.perf_counter() - self.started) / (done - self.before)
        # An upper bound, because training may stop early.
        left = _duration(seconds * (self.max_epochs - done))
        self._print(note + (f", at most {left} left" if done < self.max_epochs else ""))

    def _print(self, text: str) -> None:
        print(f"epoch {self.epoch + 1} of {self.max_epochs}: {text}", flush=True)


@contextmanager
def show_bars(visible: bool, max_epochs: int, done: int) -> Iterator[Bars]:
    """Shows progress within the context, if `visible`; `done` epochs are completed."""
    console = Console()
    if not visible:
        yield Bars()
    elif not (console.is_terminal or console.is_jupyter):
        yield Lines(max_epochs, done)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as progress:
            yield TerminalBars(progress, max_epochs, done)


def _duration(seconds: float) -> str:
    """Formats seconds, or minutes from 100 s on."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
