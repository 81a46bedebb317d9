"""IDX files: read plain and gzipped; damaged ones are named."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from daedl_bench.datasets import idx

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)


def content(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_images_and_labels_come_back(tmp_path, wrap):
    images = written(tmp_path / "images", wrap(content(PIXELS)))
    labels = written(tmp_path / "labels", wrap(content(LABELS)))
    pixels, targets = idx.read(images, labels)
    assert pixels.dtype == torch.uint8
    assert targets.dtype == torch.int64
    assert np.array_equal(pixels[:, 0].numpy(), PIXELS)
    assert targets.tolist() == LABELS.tolist()


def test_counts_that_differ_name_both_files(tmp_path):
    images = written(tmp_path / "images", content(PIXELS))
    labels = written(tmp_path / "labels", content(LABELS[:4]))
    with pytest.raises(ValueError, match=r"images holds 5 images but .*labels 4 labels") as caught:
        idx.read(images, labels)
    assert str(images) in str(caught.value)
    assert str(labels) in str(caught.value)


ZIPPED = gzip.compress(content(PIXELS), mtime=0)
HUGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 20, 1 << 10, 1 << 10)
# Within what is admitted, 1 GB, of which ten bytes follow.
LARGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 10, 1 << 10, 1 << 10) + bytes(10)
# A megabyte that expands to a gigabyte, of which the header announces 60 bytes.
BOMB = gzip.compress(content(PIXELS)) + 1000 * gzip.compress(bytes(1 << 20))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (content(LABELS), "starts with the bytes 00000801; expected 00000803, IDX images"),
        (b"\x00\x00\x0d\x03" + content(PIXELS)[4:], "starts with the bytes 00000d03"),
        (b"<html>not found</html>", "starts with the bytes"),
        (b"", "starts with the bytes of nothing"),
        (content(PIXELS)[:10], "ends within its header"),
        (content(PIXELS)[:-1], r"announces 60 bytes \(5, 4, 3\), but only 59"),
        (content(PIXELS) + b"\x00", "but more follow"),
        (ZIPPED[:-12], "truncated gzip"),
        (ZIPPED[:3], "truncated gzip"),
        (ZIPPED[:-8] + bytes(8), "damaged or truncated gzip"),
        (HUGE, "announces values of shape"),
        (gzip.compress(HUGE), "announces values of shape"),
        (LARGE, "announces 1073741824 bytes .* but only 10"),
        (gzip.compress(LARGE), "announces 1073741824 bytes .* but only 10"),
        (BOMB, "announces 60 bytes .* but more"),
        (content(PIXELS[:0]), "expected some"),
    ],
    ids=range(16),
)
def test_damaged_files_are_named_and_take_no_memory(tmp_path, data, text, little_memory):
    path = written(tmp_path / "images", data)
    with little_memory(), pytest.raises(ValueError, match=text) as caught:
        idx.read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_images_may_be_written_to(tmp_path):
    images = idx.read_idx(written(tmp_path / "images", content(PIXELS)), 3)
    images += 1
    assert np.array_equal(images.numpy(), PIXELS + 1)
