"""A campaign of faults, fuzz and hostile input: `python -m daedl_bench robustness`.

A module of this package without a leading underscore is a part. Its function `measure` returns figures.
Each part runs in a separate process and temporary folder, so that a crash or a hang is one more figure.
"""

import multiprocessing
import os
import pkgutil
import resource
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from daedl.names import look_up
from daedl_bench.robustness._place import Figure, Place
from daedl_bench.studies._machine import Limited, record

# Seconds after which all parts are ended (chosen: also enough on a machine that is busy with ten other
# programs), and limit of the CPU seconds of all: ten minutes of two cores.
LONGEST, CPU = 3600.0, 1200.0
# Parts that measure wall time or use two processes; the others run two at a time.
ALONE = frozenset(
    {"connections", "pictures", "requests", "saving", "soak", "termination", "training"}
)


def parts() -> dict[str, str]:
    """Module of each part, by its name."""
    names = (each.name for each in pkgutil.iter_modules(__path__))
    return {name: f"{__name__}.{name}" for name in names if not name.startswith("_")}


def run(only: Sequence[str], scale: float, path: Path) -> bool:
    """Run parts, by default all; append their rows to `path`, and return whether no limit is exceeded."""
    known = parts()
    modules = {name: look_up(known, name, "part") for name in only or known}
    started, cpu = time.perf_counter(), _cpu_seconds()

    def measured(name: str) -> list[Limited]:
        left = LONGEST - (time.perf_counter() - started)
        return rows(name, modules[name], scale, max(left, 0))

    together, alone = ([n for n in modules if (n in ALONE) is kind] for kind in (False, True))
    met = []
    with ThreadPoolExecutor(2) as pool:
        for name, figures in zip(together, pool.map(measured, together), strict=True):
            met.append(record(name, figures, path))
    met += [record(name, measured(name), path) for name in alone]
    if not only:
        spent = {"wall time": (time.perf_counter() - started, LONGEST)}
        spent["CPU time"] = _cpu_seconds() - cpu, CPU
        total = [Limited(name, "total", "s", *each) for name, each in spent.items()]
        met.append(record("total", total, path))
    return all(met)


def _cpu_seconds() -> float:
    """CPU time of the parts that ended, and of the programs that they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows(name: str, module: str, scale: float, longest: float = LONGEST) -> list[Limited]:
    """The figures of a part, measured in a separate process that is killed after `longest` seconds."""
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
            if receive.poll(longest):
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
