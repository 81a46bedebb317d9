"""Damage to bytes and to descriptions, drawn with a seed."""

import json
import pickle
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

# Values that no setting of a description has, or only by chance.
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2, 1.5, 10**9, 10**15, 10**400),
    *(5e-324, 1e300, 1e308, float("nan"), float("-inf")),
    *("", "x" * 1000, "\x1b[31m", [], {}, [[1]], [1] * 1000, {"a": {}}),
)


def damaged(draw: Random, data: bytes) -> bytes:
    """Truncated, or with some bytes changed, removed or inserted."""
    if draw.random() < 0.3:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(draw.randint(1, 20)):
        place = draw.randrange(max(1, len(changed)))
        changed[place : place + draw.randint(0, 4)] = draw.randbytes(draw.randint(0, 4))
    return bytes(changed)


def flipped(draw: Random, data: bytes) -> bytes:
    """With one bit changed."""
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def redescribed(draw: Random, description: dict[str, Any]) -> dict[str, Any]:
    """A copy with one entry, at any depth, removed or replaced by a hostile value."""
    copy: dict[str, Any] = json.loads(json.dumps(description))
    entry: Any = copy
    while True:
        keys = list(entry) if isinstance(entry, dict) else list(range(len(entry)))
        key = draw.choice(keys)
        child = entry[key]
        if isinstance(child, dict | list) and child and draw.random() < 0.8:
            entry = child
        elif draw.random() < 0.2:
            del entry[key]
            return copy
        else:
            entry[key] = draw.choice(HOSTILE)
            return copy


def many_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG of `side` x `side` pixels whose last scan, of a few bytes, is repeated."""
    buffer = BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True, quality=50)
    content = buffer.getvalue()
    last = content[content.rfind(b"\xff\xda") : -2]
    return content[:-2] + last * scans + content[-2:]


class Payload:
    """Creates the file `marker` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def payload(marker: Path) -> bytes:
    """A pickle that creates the file `marker` when it is read."""
    return pickle.dumps(Payload(marker))
