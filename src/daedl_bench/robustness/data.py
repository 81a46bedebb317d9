"""Damaged images and archives: each must be used, or refused with a ValueError, in little time and memory."""

import contextlib
import io
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from daedl.classifier import Classifier
from daedl.data.arrays import read_npz
from daedl_bench.robustness._damage import Payload, damaged, many_scans
from daedl_bench.robustness._place import Figure, Place, stripes
from daedl_bench.server import picture

FILES = 300  # of each format
SCANS = (
    1400,
    30_000,
)  # side of a JPEG of 368 KB, and passes over its pixels, which would take minutes
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")


def measure(place: Place) -> list[Figure]:
    """Images are predicted; archives are read."""
    warnings.simplefilter("ignore")
    model, draw = Classifier.load(place.model()), place.draw()
    counts: Counter[str] = Counter()
    slowest, marker = 0.0, place.folder / "executed"
    archive = place.archive(12)
    valid = {archive: archive.read_bytes()}
    for kind in FORMATS:
        valid[place.folder / f"image.{kind.lower()}"] = picture(
            stripes(1)[0][0].repeat(1, 4, 4), kind
        )
    for path, content in valid.items():
        read = read_npz if path == archive else model.predict
        for _ in range(place.count(FILES)):
            path.write_bytes(damaged(draw, content))
            slowest = max(slowest, _try(counts, read, path))
    scans = place.folder / "scans.jpeg"
    scans.write_bytes(many_scans(*SCANS))
    slowest = max(slowest, _try(counts, model.predict, scans))
    for content in (_objects(marker), _announces(10**6)):
        archive.write_bytes(content)
        slowest = max(slowest, _try(counts, read_npz, archive))
    return [
        Figure("files", counts.total()),
        Figure("refused with a reason", counts["refused"]),
        Figure("other errors", counts["unclear"], 0),
        Figure("longest, CPU time", slowest, 1, "s"),
        Figure("pickles executed", marker.exists(), 0),
    ]


def _try(counts: Counter[str], read: Callable[[Path], object], path: Path) -> float:
    """Count the outcome, and return the seconds."""
    started = time.process_time()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            read(path)
        counts["used"] += 1
    except ValueError:
        counts["refused"] += 1
    except Exception as error:
        counts["unclear"] += 1
        print(f"unclear: {path.name}: {type(error).__name__}: {error}")
    return time.process_time() - started


def _objects(marker: Path) -> bytes:
    """An archive with an array of Python objects, which are stored as a pickle."""
    buffer, array = io.BytesIO(), np.empty(1, dtype=object)
    array[0] = Payload(marker)
    np.savez(buffer, images=array, labels=np.zeros(1, int))
    return buffer.getvalue()


def _announces(side: int) -> bytes:
    """An archive with an array whose header announces `side` x `side` pixels."""
    header, buffer = io.BytesIO(), io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (1, side, side)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(100))
        archive.writestr("labels.npy", b"")
    return buffer.getvalue()
