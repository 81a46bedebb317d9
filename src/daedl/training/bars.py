"""Progress bars of training."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from daedl.data.batches import Batch
from daedl.data.loaders import count


class Bars:
    """A bar for the epochs and one for the batches of the current epoch; neither without `progress`."""

    def __init__(self, progress: Progress | None, max_epochs: int, done: int) -> None:
        self.progress = progress
        if progress is not None:
            self.all = progress.add_task("epochs", total=max_epochs, completed=done, note="")
            self.one = progress.add_task("batches", note="")

    def batches(self, train: Iterable[Batch], epoch: int) -> Iterator[Batch]:
        """Yields the batches of an epoch and advances the bar."""
        if self.progress is None:
            yield from train
            return
        total = count(train)
        self.progress.reset(self.one, total=total, description=f"epoch {epoch}")
        for batch in train:
            yield batch
            self.progress.advance(self.one)

    def epoch_done(self, note: str) -> None:
        """Advances the bar of the epochs and shows `note`."""
        if self.progress is not None:
            self.progress.update(self.all, advance=1, note=note)


@contextmanager
def show_bars(visible: bool, max_epochs: int, done: int) -> Iterator[Bars]:
    """Shows bars on the terminal within the context, if `visible`; `done` epochs are completed."""
    if not visible:
        yield Bars(None, max_epochs, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as progress:
        yield Bars(progress, max_epochs, done)
