"""CIFAR batches: read without running code."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from daedl_bench.datasets.formats import cifar

DATA = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)


def written(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("key", ["labels", b"labels", "fine_labels"])
@pytest.mark.parametrize("fortran", [False, True])
def test_batches_are_concatenated(tmp_path, key, fortran):
    data = np.asfortranarray(DATA) if fortran else DATA
    names = ("data", key) if isinstance(key, str) else (b"data", key)
    first = written(tmp_path / "one", dict(zip(names, (data, [0, 1, 2, 3]), strict=True)))
    second = written(tmp_path / "two", dict(zip(names, (data[:2], [4, 5]), strict=True)))
    images, labels = cifar.read([first, second])
    assert images.dtype == np.uint8
    assert images.shape == (6, 32, 32, 3)
    assert np.array_equal(images[:4].transpose(0, 3, 1, 2).reshape(4, -1), DATA)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


class EvilByName(Evil):
    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


@pytest.mark.parametrize("evil", [Evil, EvilByName])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_malicious_pickles_are_rejected_and_not_run(tmp_path, evil, protocol):
    mark = tmp_path / "mark"
    # Nothing that might be rejected precedes the malicious object.
    path = written(tmp_path / "data_batch_1", {"labels": [0, 1, 2, evil(mark)]}, protocol)
    text = r"rejected.*imports (builtin|pathlib|__builtin__)"
    with pytest.raises(ValueError, match=text) as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)
    assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists()  # the file is harmful


def test_accepted_names_do_not_run_numpy(tmp_path):
    path = written(tmp_path / "batch", {"data": np.array([{}], dtype=object), "labels": [0]})
    with pytest.raises(ValueError, match="no array under `data`"):
        cifar.read([path])


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r" + struct.pack("<I", (1 << 31) - 1) + b".",  # a memo index
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 30) + b"few",  # a length of bytes
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 30) + b"few",  # a length of text
        b"\x80\x05\x96" + struct.pack("<Q", 500_000_000),  # a bytearray
    ],
)
def test_announced_sizes_are_not_allocated(tmp_path, content, little_memory):
    (tmp_path / "batch").write_bytes(content)
    with little_memory(), pytest.raises(ValueError, match="expected a CIFAR batch") as caught:
        cifar.read([tmp_path / "batch"])
    assert str(tmp_path / "batch") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (bytearray(b"few"), "opcode BYTEARRAY8"),
        ({1, 2}, "opcode EMPTY_SET"),
        ([1 << 20_000], "opcode LONG4"),  # too many digits to print
    ],
)
def test_unneeded_opcodes_are_rejected(tmp_path, content, text):
    path = written(tmp_path / "batch", {"labels": [content]}, protocol=5)
    with pytest.raises(ValueError, match=f"rejected.*{text}") as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "end", [b"K\x01s.", b"K\x01u.", b"K\x01d."], ids=["SETITEM", "SETITEMS", "DICT"]
)
def test_keys_other_than_strings_are_rejected(tmp_path, end):
    """Hashing a tuple nested 200,000 levels deep ends the process."""
    start = {b"s": b"})", b"u": b"}()", b"d": b"()"}[end[2:3]]
    (tmp_path / "batch").write_bytes(b"\x80\x02" + start + b"\x85" * 200_000 + end)
    with pytest.raises(ValueError, match="a tuple as a key") as caught:
        cifar.read([tmp_path / "batch"])
    assert str(tmp_path / "batch") in str(caught.value)


def test_labels_of_thousands_of_digits_are_reported(tmp_path):
    content = pickle.dumps({"data": DATA, "labels": [0, 9]}, protocol=3)
    before, _, after = content.rpartition(b"K\x09")
    (tmp_path / "batch").write_bytes(before + b"I0x" + b"f" * 6000 + b"\n" + after)
    with pytest.raises(ValueError, match="more than 30 digits") as caught:
        cifar.read([tmp_path / "batch"])
    assert str(tmp_path / "batch") in str(caught.value)


class OfShape:
    """Pickled as an array with a shape that NumPy would reject."""

    def __init__(self, shape: object) -> None:
        self.shape = shape

    def __reduce__(self):
        create, arguments, _ = DATA.__reduce__()
        return create, arguments, (1, self.shape, np.dtype("u1"), False, DATA.tobytes())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([1, 2], "holds a list"),
        ({"data": DATA, "labels": [0, 1, 2, 2**70]}, "contain 1180591620717411303424; expected 0"),
        ({"data": DATA, "labels": [0, 1, 2, -1]}, "contain -1; expected 0 to 99"),
        ({"data": OfShape((None, 3072)), "labels": [0] * 4}, r"shape \(None, 3072\)"),
        ({"data": OfShape((4.0, 3072)), "labels": [0] * 4}, r"shape \(4.0, 3072\)"),
        ({"data": OfShape((4, 3072.0)), "labels": [0] * 4}, r"shape \(4, 3072.0\)"),
        ({"\ud800": 1}, "no array under `data`"),
        ({"labels": [0]}, "no array under `data`"),
        ({"data": DATA[:, :5], "labels": [0] * 4}, r"shape \(4, 5\)"),
        ({"data": DATA.astype(np.int16), "labels": [0] * 4}, "dtype .*i2"),
        ({"data": DATA}, "no list of integers"),
        ({"data": DATA, "labels": ["cat"] * 4}, "no list of integers"),
        ({"data": DATA, "labels": [0]}, "4 images but .* 1 labels"),
    ],
)
def test_other_contents_are_named(tmp_path, content, text):
    path = written(tmp_path / "batch", content)
    with pytest.raises(ValueError, match=text) as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)


def test_shapes_too_deep_to_print_are_reported(tmp_path):
    path = written(tmp_path / "batch", {"data": OfShape("here"), "labels": [0] * 4}, protocol=3)
    content = path.read_bytes()
    assert content.count(b"X\4\0\0\0here") == 1
    path.write_bytes(content.replace(b"X\4\0\0\0here", b")" + b"\x85" * 2000))
    with pytest.raises(ValueError, match=r"shape \(\(\(") as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)
