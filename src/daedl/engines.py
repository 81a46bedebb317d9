"""Engines map a function over items: in this process, or with Ray on the cores of many machines.

Everything that runs on many machines is such a map: scoring parts of the data, statistics of parts,
experiments.
"""

import os
import pickle
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar

from daedl.checks import import_optional

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[T], R]

Name = Literal["local", "ray"]
LOCAL: Name = "local"
RAY: Name = "ray"
# Times that an item is repeated whose worker or machine was lost (chosen): one that always kills its worker,
# for instance by its size, ends with an error.
RETRIES = 3
# Items that are queued at a time (chosen: more than the cores of most clusters).
AHEAD = 1024


class Engine(Protocol):
    """Maps `build()` over items and yields the results in their order."""

    def map(self, build: Callable[[], Work[T, R]], items: Iterable[T]) -> Iterator[R]:
        """Calls `build` once in each worker process, then the function it returns with each item."""


class Local:
    """This process."""

    def map(self, build: Callable[[], Work[T, R]], items: Iterable[T]) -> Iterator[R]:
        """Calls `build()` with each item."""
        work = build()
        for item in items:
            yield work(item)


class Ray:
    """Tasks of Ray, one core each; those that are lost with a worker or a machine run again."""

    def __init__(self, ray: Any, gpus: int = 0) -> None:
        self.ray = ray
        self.task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_run)

    def map(self, build: Callable[[], Work[T, R]], items: Iterable[T]) -> Iterator[R]:
        """Calls `build()` with each item, in some worker; an error of an item is raised here."""
        pickled, pending = self.ray.cloudpickle.dumps(build), deque[Any]()
        try:
            for item in items:
                pending.append(self.task.remote(pickled, item))
                if len(pending) >= AHEAD:
                    yield self._result(pending)
            while pending:
                yield self._result(pending)
        finally:
            for task in pending:
                self.ray.cancel(task)

    def _result(self, pending: "deque[Any]") -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(pending.popleft())
        except errors.RayTaskError as error:
            # What the item raised, which callers expect, after the traceback of the worker.
            raise error.cause from error
        except errors.RayError as error:
            raise ConnectionError(
                f"an item was lost {RETRIES + 1} time(s) with its worker ({type(error).__name__}); expected "
                "workers with the same versions of Python, daedl and ray, and enough memory for an item: see "
                "Ray's logs, then run the same command again, which keeps what is finished"
            ) from error


@lru_cache(maxsize=1)  # of this worker process: a model is loaded once
def _built(pickled: bytes) -> Any:
    return pickle.loads(pickled)()


def _run(pickled: bytes, item: Any) -> Any:
    os.environ.setdefault("DAEDL_WORKERS", "0")  # the engine occupies the other cores
    return _built(pickled)(item)


@contextmanager
def connect(engine: str = LOCAL, workers: int | None = None, gpus: int = 0) -> Iterator[Engine]:
    """An engine by name, connected within the context.

    "ray" uses the connection of this process, if there is one; else the cluster that the environment variable
    RAY_ADDRESS names ("auto" finds a running one); else it starts a cluster on this machine.

    Arguments:
        workers: cores of a cluster that is started here; by default all.
        gpus: GPUs per item.
    """
    if engine == LOCAL:
        yield Local()
        return
    if engine != RAY:
        raise ValueError(f"unknown engine {engine!r}; expected one of {LOCAL}, {RAY}")
    ray = import_optional("ray", "the engine ray", "'daedl[ray]'")
    if ray.is_initialized():
        yield Ray(ray, gpus)
        return
    _start(ray, workers)
    try:
        yield Ray(ray, gpus)
    finally:
        ray.shutdown()


def _start(ray: Any, workers: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address, **quiet)
        return
    # Otherwise Ray would write a token for the cluster into the home folder.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray.init("local", num_cpus=workers, include_dashboard=False, **quiet)
