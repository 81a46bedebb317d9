"""Failures of a run, which continues with the other trials."""

from dataclasses import dataclass

from daedl.demo.training import Progress


@dataclass(frozen=True)
class Failure:
    """Where something failed, and why."""

    where: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.where}: {type(self.error).__name__}: {self.error}"


class Failures(list[Failure]):
    """All failures of a run; each is printed when it occurs, as the end may be hours away."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def add(self, where: str, error: Exception) -> None:
        """Keep the error without its traceback, which would keep tensors alive."""
        self.append(Failure(where, error.with_traceback(None)))
        self._progress.fails(str(self[-1]))
