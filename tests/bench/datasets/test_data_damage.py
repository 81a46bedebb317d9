"""Files damaged at every place, one at a time: they are read all the same, or named in the error."""

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
from daedl_bench.datasets import cifar, corrupted, idx, svhn
from daedl_bench.datasets.archives import extract

LABELS = np.arange(3)
# Partly random, partly not, so that packed there are bytes of every kind.
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3), dtype=np.uint8)
PIXELS[1] = 7
PLACES = 60  # at most, spread over the file


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
        assert not list(root.iterdir())  # nothing half-written
        raise
    for file in root.rglob("set/*"):
        file.unlink()
    if (root / "set").exists():
        (root / "set").rmdir()


def read_corrupted(path: Path) -> None:
    np.save(path.parent / "labels.npy", LABELS)
    corrupted.read(path, path.parent / "labels.npy")


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
        svhn.read,
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
def test_a_file_damaged_anywhere_is_read_or_named(tmp_path, name, value):
    whole, read = READERS[name]
    path = tmp_path / name
    told = []
    for place in range(0, len(whole), -(-len(whole) // PLACES)):
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            read(path)
        except ValueError as error:
            told.append(str(error))
    assert told
    assert all(str(path) in text for text in told)


@pytest.mark.parametrize("name", READERS)
def test_a_file_cut_anywhere_is_named(tmp_path, name):
    whole, read = READERS[name]
    path = tmp_path / name
    # Pillow forgives a PNG the loss of its last bytes, which hold no pixels.
    for length in range(0, len(whole) - 24, -(-len(whole) // PLACES)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="expected") as caught:
            read(path)
        assert str(path) in str(caught.value)
