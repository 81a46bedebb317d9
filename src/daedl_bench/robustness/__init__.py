"""A campaign of faults, fuzz and hostile input: `python -m daedl_bench robustness`.

A module of this package without a leading underscore is a part. Its function `measure` returns figures.
Each part runs in a process and a temporary folder of its own, so that a crash or a hang is one more figure.
"""

import multiprocessing
import os
import pkgutil
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from daedl.names import look_up
from daedl_bench.robustness._place import Figure, Place
from daedl_bench.studies._machine import Limited, record

# Seconds after which a part is ended (chosen: also enough on a machine that is busy with ten other programs).
LONGEST = 3600.0


def parts() -> dict[str, str]:
    """Module of each part, by its name."""
    names = (each.name for each in pkgutil.iter_modules(__path__))
    return {name: f"{__name__}.{name}" for name in names if not name.startswith("_")}


def run(only: Sequence[str], scale: float, path: Path) -> bool:
    """Run parts, by default all; append their rows to `path`, and return whether no limit is exceeded."""
    known = parts()
    modules = {name: look_up(known, name, "part") for name in only or known}
    met = [record(name, rows(name, modules[name], scale), path) for name in modules]
    return all(met)


def rows(name: str, module: str, scale: float) -> list[Limited]:
    """The figures of a part, measured in a process of its own."""
    started = time.perf_counter()
    receive, send = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), scale)
        process = multiprocessing.get_context("spawn").Process(
            target=_measure, args=(module, place, send)
        )
        process.start()
        assert process.ident is not None  # since it is started
        send.close()  # so that the end of the process ends the wait
        figures: list[Figure] = []
        try:
            if receive.poll(LONGEST):
                figures = receive.recv()
        except EOFError:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.ident, signal.SIGKILL)  # and the servers that the part started
            process.kill()
            process.join()
    figures = [*figures, Figure("crashes and hangs", float(not figures), 0)]
    seconds = round(time.perf_counter() - started, 1)
    plain = (Limited(each.name, name, each.unit, float(each.value), each.limit) for each in figures)
    return [replace(each, seconds=seconds, threads=1) for each in plain]


def _measure(module: str, place: Place, send: Connection) -> None:
    os.setpgrp()
    torch.set_num_threads(1)
    send.send(import_module(module).measure(place))
