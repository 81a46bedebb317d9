"""Files damaged at every position in turn: the reader succeeds or names the file."""

import gzip
import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from daedl.data import read_images, read_npz
from daedl_bench.datasets.archives import extract
from daedl_bench.datasets.formats import cifar, idx, npy, svhn

LABELS = np.arange(3)
# Partly random, partly constant, for literals and matches in compressed data.
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3), dtype=np.uint8)
PIXELS[1] = 7
POSITIONS = 60  # at most, spread over the file


def in_memory(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def packed(buffer: io.BytesIO) -> None:
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/images", PIXELS.tobytes())
        archive.writestr("set/labels", bytes(300))


def unpack(path: Path) -> None:
    root = path.parent / "root"
    root.mkdir(exist_ok=True)
    try:
        extract(path, ["set/images", "set/labels"], root)
    except ValueError:
        assert not list(root.iterdir())  # no partial file
        raise
    for file in root.rglob("set/*"):
        file.unlink()
    if (root / "set").exists():
        (root / "set").rmdir()


def read_corrupted(path: Path) -> None:
    np.save(path.parent / "labels.npy", LABELS)
    npy.read([path, path.parent / "labels.npy"])


MAT = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}
BATCH = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], "filenames": ["a", "b"]}
READERS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "mine.npz": (
        in_memory(lambda file: np.savez_compressed(file, images=PIXELS, labels=LABELS)),
        read_npz,
    ),
    "fog.npy": (in_memory(lambda file: np.save(file, PIXELS)), read_corrupted),
    "test_32x32.mat": (
        in_memory(lambda file: savemat(file, MAT, do_compression=True)),
        lambda path: svhn.read([path]),
    ),
    "test_batch": (pickle.dumps(BATCH, protocol=4), lambda path: cifar.read([path])),
    "t10k-images-idx3-ubyte.gz": (
        gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 3, 6, 15) + PIXELS.tobytes()),
        lambda path: idx.read_idx(path, 3),
    ),
    "cat.png": (
        in_memory(lambda file: Image.fromarray(PIXELS[0]).save(file, "PNG")),
        lambda path: read_images([path]),
    ),
    "cat.jpg": (
        in_memory(lambda file: Image.fromarray(PIXELS[0]).save(file, "JPEG")),
        lambda path: read_images([path]),
    ),
    "set.zip": (in_memory(packed), unpack),
}


@pytest.mark.parametrize("value", [0x00, 0x28, 0xFF], ids=hex)
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_named(tmp_path, name, value):
    whole, read = READERS[name]
    path = tmp_path / name
    messages = []
    for position in range(0, len(whole), -(-len(whole) // POSITIONS)):
        path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
        try:
            read(path)
        except ValueError as error:
            messages.append(str(error))
    assert messages
    assert all(str(path) in text for text in messages)


@pytest.mark.parametrize("name", READERS)
def test_truncated_files_are_named(tmp_path, name):
    whole, read = READERS[name]
    path = tmp_path / name
    # Pillow accepts a PNG without its last bytes, which hold no pixels.
    for length in range(0, len(whole) - 24, -(-len(whole) // POSITIONS)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="expected") as caught:
            read(path)
        assert str(path) in str(caught.value)
