"""`daedl calibrate` is killed while it replaces a model: the file must hold the old or the new model."""

import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

from daedl.methods import EDLPlus
from daedl_bench.robustness._commands import PROCESSES, finish, start, temporaries
from daedl_bench.robustness._place import Figure, Place

KILLS = 50
# Widths that make a file of 17 MB, which takes some milliseconds to write.
HIDDEN = (2048, 2048)
WRITING = 0.02  # seconds after the first byte within which the process is killed (chosen)
RATES = (0.05, 0.2)


def measure(place: Place) -> list[Figure]:
    """Kills within `WRITING` seconds of the moment at which the temporary file appears."""
    data, model = place.archive(), place.model(EDLPlus(), HIDDEN)
    valid = {_calibrated(model, data, rate) for rate in RATES}
    work = partial(_kill, data, model, valid, -(-place.count(KILLS) // PROCESSES))
    with ThreadPoolExecutor(PROCESSES) as pool:
        counts = sum(pool.map(work, range(PROCESSES)), Counter[str]())
    return [
        Figure("kills", counts["kills"]),
        Figure("kills that left a temporary file", counts["temporary"]),
        Figure("kills after the new model was in place", counts["replaced"]),
        Figure("models lost", counts["lost"], 0),
        Figure("temporary files after the last run", counts["left"], 0),
    ]


def _kill(data: Path, model: Path, valid: set[bytes], kills: int, number: int) -> Counter[str]:
    folder, draw, counts = model.parent / str(number), Random(number), Counter[str]()
    folder.mkdir()
    model = Path(shutil.copy(model, folder))
    for turn in range(kills):
        before, earlier = model.read_bytes(), set(temporaries(folder))
        process = start(*_command(model, data, RATES[turn % 2]))
        while process.poll() is None and not set(temporaries(folder)) - earlier:
            time.sleep(0.0005)
        time.sleep(draw.uniform(0, WRITING))
        counts["kills"] += process.poll() is None
        finish(process, kill=True)
        counts["temporary"] += bool(temporaries(folder))
        counts["replaced"] += model.read_bytes() != before
        counts["lost"] += model.read_bytes() not in valid
    counts["lost"] += _calibrated(model, data, RATES[0]) not in valid
    counts["left"] += len(temporaries(folder))
    return counts


def _calibrated(model: Path, data: Path, rate: float) -> bytes:
    """The file of the model that the command writes."""
    if not finish(start(*_command(model, data, rate))):
        raise RuntimeError("an undisturbed calibration failed")
    return model.read_bytes()


def _command(model: Path, data: Path, rate: float) -> list[object]:
    return ["calibrate", model, "--data", data, "--reject", rate, "--force"]
