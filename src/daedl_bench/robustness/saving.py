"""`daedl calibrate` is killed while it replaces a model: the file must hold the old or the new model."""

import io
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from random import Random

from daedl.cli import app
from daedl.methods import EDLPlus
from daedl_bench.robustness._commands import PROCESSES, finish, start, temporaries
from daedl_bench.robustness._place import Figure, Place

KILLS = 50
# Widths that make a file of 17 MB, which takes some milliseconds to write.
HIDDEN = (2048, 2048)
# Seconds within which the process is killed after the first byte is written, and half of the times after the
# new model is in place (chosen).
WRITING, PLACED = 0.02, 0.005
RATES = (0.05, 0.2)


def measure(place: Place) -> list[Figure]:
    """Kills while the temporary file is written, and after it has replaced the model."""
    data, model = place.archive(), place.model(EDLPlus(), HIDDEN)
    valid = {rate: _calibrated(model, data, rate) for rate in RATES}
    work = partial(_kill, data, model, valid, -(-place.count(KILLS) // PROCESSES))
    with ThreadPoolExecutor(PROCESSES) as pool:
        counts = sum(pool.map(work, range(PROCESSES)), Counter[str]())
    for number in range(PROCESSES):
        killed = model.parent / str(number) / model.name
        counts["lost"] += _calibrated(killed, data, RATES[0]) not in valid.values()
        counts["left"] += len(temporaries(killed.parent))
    return [
        Figure("kills", counts["kills"]),
        Figure("kills that left a temporary file", counts["temporary"]),
        Figure("kills after the new model was in place", counts["replaced"]),
        Figure("models lost", counts["lost"], 0),
        Figure("temporary files after the last run", counts["left"], 0),
    ]


def _kill(
    data: Path, model: Path, valid: dict[float, bytes], kills: int, number: int
) -> Counter[str]:
    folder, draw, counts = model.parent / str(number), Random(number), Counter[str]()
    folder.mkdir()
    model = Path(shutil.copy(model, folder))
    for turn in range(kills):
        before, earlier, file = model.read_bytes(), set(temporaries(folder)), model.stat().st_ino
        rate = next(rate for rate, content in valid.items() if content != before)
        process = start(*_command(model, data, rate))
        while process.poll() is None:
            written = set(temporaries(folder)) - earlier
            if model.stat().st_ino != file if turn % 2 else written:
                break
            time.sleep(0.0005)
        time.sleep(draw.uniform(0, PLACED if turn % 2 else WRITING))
        counts["kills"] += process.poll() is None
        finish(process, kill=True)
        counts["temporary"] += bool(temporaries(folder))
        counts["replaced"] += model.read_bytes() != before
        counts["lost"] += model.read_bytes() not in valid.values()
    return counts


def _calibrated(model: Path, data: Path, rate: float) -> bytes:
    """The file of the model that the command writes, here in this process."""
    arguments = map(str, _command(model, data, rate))
    with redirect_stdout(io.StringIO()):
        app([*arguments, "--threads", "1"], standalone_mode=False)
    return model.read_bytes()


def _command(model: Path, data: Path, rate: float) -> list[object]:
    return ["calibrate", model, "--data", data, "--reject", rate, "--force"]
