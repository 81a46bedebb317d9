"""`daedl train` is killed and resumed until it ends; the model must be that of an undisturbed training."""

import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

from daedl.training.checkpoint import Checkpoint
from daedl_bench.robustness._commands import PROCESSES, finish, start, temporaries
from daedl_bench.robustness._place import Figure, Place

KILLS = 50
EPOCHS = 20


def measure(place: Place) -> list[Figure]:
    """Half of the kills are before the first epoch of a run ends, the others later."""
    data, straight = place.archive(), place.folder / "straight.daedl"
    process = start(*_command(data, straight))
    _await_training(process)
    started = time.perf_counter()
    _await_epoch(process, _checkpoint(straight))
    first = time.perf_counter() - started
    if not finish(process):
        raise RuntimeError("the undisturbed training failed")
    spans = first, time.perf_counter() - started - first
    work = partial(_kill_and_resume, place, data, straight.read_bytes(), spans)
    with ThreadPoolExecutor(PROCESSES) as pool:
        counts = sum(pool.map(work, range(PROCESSES)), Counter[str]())
    return [
        Figure("kills", counts["kills"]),
        Figure("kills after an epoch", counts["checkpoints"]),
        Figure("trainings completed", counts["completed"]),
        Figure("trainings lost", counts["lost"], 0),
        Figure("damaged files", counts["damaged"], 0),
        Figure("temporary files after kills", counts["temporary"]),
        Figure("temporary files after the last run", counts["left"], 0),
    ]


def _kill_and_resume(
    place: Place, data: Path, expected: bytes, spans: tuple[float, float], number: int
) -> Counter[str]:
    folder, draw, counts = place.folder / str(number), Random(number), Counter[str]()
    folder.mkdir()
    out = folder / "m.daedl"
    checkpoint = _checkpoint(out)
    wanted = -(-place.count(KILLS) // PROCESSES)
    while counts["kills"] < wanted or checkpoint.exists():
        process = start(*_command(data, out), "--resume")
        _await_training(process)
        kill = counts["kills"] < wanted
        if kill:
            later = counts["kills"] % 2
            if later:
                _await_epoch(process, checkpoint)
            # Half of the rest, so that few runs complete before they are killed.
            time.sleep(draw.uniform(0, spans[later] / (1 + later)))
            kill = process.poll() is None
        ended = finish(process, kill)
        counts["kills"] += kill
        counts["checkpoints"] += kill and checkpoint.exists()
        counts["temporary"] += len(temporaries(folder))
        if kill and not out.exists():
            counts["damaged"] += checkpoint.exists() and not _loads(checkpoint)
            continue
        complete = out.exists() and out.read_bytes() == expected
        counts["completed"] += complete
        counts["lost"] += not complete or not (ended or kill)
        counts["left"] += 0 if kill else len(temporaries(folder))
        for each in folder.iterdir():
            each.unlink()
    return counts


def _command(data: Path, out: Path) -> list[object]:
    settings = ["--network", "convnet", "--device", "cpu", "--seed", 0]
    return ["train", "--data", data, "--out", out, "--epochs", EPOCHS, "--patience", 99, *settings]


def _await_training(process: subprocess.Popen[str]) -> None:
    """Read the output up to the line that precedes the first epoch."""
    for line in process.stdout or ():
        if "epochs of" in line:
            return


def _checkpoint(out: Path) -> Path:
    return out.with_name(f"{out.name}.ckpt")


def _await_epoch(process: subprocess.Popen[str], checkpoint: Path) -> None:
    """Wait until `process` writes a checkpoint, or ends."""

    def identity() -> int:
        return checkpoint.stat().st_ino if checkpoint.exists() else 0

    before = identity()
    while process.poll() is None and identity() in (0, before):
        time.sleep(0.001)


def _loads(checkpoint: Path) -> bool:
    try:
        Checkpoint.load(checkpoint)
    except ValueError:
        return False
    return True
