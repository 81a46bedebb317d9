"""IDX files: plain, gzipped, damaged."""

import gzip
import struct

import numpy as np
import pytest

from daedl_bench.datasets.formats import idx

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], dtype=np.uint8)


def content(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_images_and_labels_are_read(tmp_path, wrap):
    paths = [tmp_path / "images", tmp_path / "labels"]
    for path, array in zip(paths, (PIXELS, LABELS), strict=True):
        path.write_bytes(wrap(content(array)))
    images, labels = idx.read(paths)
    assert np.array_equal(images, PIXELS[..., None])
    assert np.array_equal(labels, LABELS)


ZIPPED = gzip.compress(content(PIXELS), mtime=0)
HUGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 20, 1 << 10, 1 << 10)
# 1 GB, which is below the limit, announced for ten bytes.
LARGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 10, 1 << 10, 1 << 10) + bytes(10)
# A megabyte that expands to a gigabyte, of which the header announces 60 bytes.
BOMB = gzip.compress(content(PIXELS)) + 1000 * gzip.compress(bytes(1 << 20))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (content(LABELS), "starts with the bytes 00000801; expected 00000803"),
        (b"\x00\x00\x0d\x03" + content(PIXELS)[4:], "starts with the bytes 00000d03"),
        (b"<html>not found</html>", "starts with the bytes"),
        (b"", "starts with the bytes"),
        (content(PIXELS)[:10], "announces shape"),
        (content(PIXELS)[:-1], "but only 59"),
        (content(PIXELS) + b"\x00", "but more"),
        (ZIPPED[:-12], "truncated gzip"),
        (ZIPPED[:3], "truncated gzip"),
        (ZIPPED[:-8] + bytes(8), "truncated gzip"),
        (HUGE, "announces shape"),
        (gzip.compress(HUGE), "announces shape"),
        (LARGE, "announces 1073741824 bytes .* but only 10"),
        (gzip.compress(LARGE), "announces 1073741824 bytes .* but only 10"),
        (BOMB, "announces 60 bytes .* but more"),
        (content(PIXELS[:0]), "announces shape"),
    ],
    ids=range(16),
)
def test_damaged_files_are_named_and_allocate_little(tmp_path, data, text, little_memory):
    path = tmp_path / "images"
    path.write_bytes(data)
    with little_memory(), pytest.raises(ValueError, match=text) as caught:
        idx.read_idx(path, 3)
    assert str(path) in str(caught.value)
