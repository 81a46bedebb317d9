"""CIFAR batches: read, and never run."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from daedl_bench.datasets import cifar

DATA = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)


def written(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("key", ["labels", b"labels", "fine_labels"])
@pytest.mark.parametrize("by_column", [False, True])
def test_batches_come_one_after_the_other(tmp_path, key, by_column):
    data = np.asfortranarray(DATA) if by_column else DATA
    names = ("data", key) if isinstance(key, str) else (b"data", key)
    first = written(tmp_path / "one", dict(zip(names, (data, [0, 1, 2, 3]), strict=True)))
    second = written(tmp_path / "two", dict(zip(names, (data[:2], [4, 5]), strict=True)))
    images, labels = cifar.read([first, second])
    assert images.dtype == torch.uint8
    assert images.shape == (6, 3, 32, 32)
    assert np.array_equal(images[:4].numpy().reshape(4, -1), DATA)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]


class Evil:
    """What a pickle may do when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


class EvilByName(Evil):
    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


@pytest.mark.parametrize("evil", [Evil, EvilByName])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, evil, protocol):
    mark = tmp_path / "mark"
    # Nothing that might be refused comes before the evil.
    path = written(tmp_path / "data_batch_1", {"labels": [0, 1, 2, evil(mark)]}, protocol)
    text = r"refused, and nothing in it was run: it asks for (builtin|pathlib|__builtin__)"
    with pytest.raises(ValueError, match=text) as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)
    assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists()  # the file would have done harm


def test_what_is_admitted_runs_none_of_numpys_code(tmp_path):
    path = written(tmp_path / "batch", {"data": np.array([{}], dtype=object), "labels": [0]})
    with pytest.raises(ValueError, match="no array under `data`"):
        cifar.read([path])


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r" + struct.pack("<I", (1 << 31) - 1) + b".",  # an object of that number
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 30) + b"few",  # that many bytes
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 30) + b"few",  # that many letters
        b"\x80\x05\x96" + struct.pack("<Q", 500_000_000),  # that many bytes to write to
    ],
)
def test_a_batch_of_a_few_bytes_takes_no_memory(tmp_path, content, little_memory):
    (tmp_path / "batch").write_bytes(content)
    with little_memory(), pytest.raises(ValueError, match="expected a CIFAR batch") as caught:
        cifar.read([tmp_path / "batch"])
    assert str(tmp_path / "batch") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (bytearray(b"few"), "it holds the instruction BYTEARRAY8"),
        ({1, 2}, "it holds the instruction EMPTY_SET"),
        ([1 << 20_000], "it holds the instruction LONG4"),  # too many digits to be told
    ],
)
def test_instructions_that_no_batch_needs_are_refused(tmp_path, content, text):
    path = written(tmp_path / "batch", {"labels": [content]}, protocol=5)
    with pytest.raises(ValueError, match=f"refused, and nothing in it was run: {text}") as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "end", [b"K\x01s.", b"K\x01u.", b"K\x01d."], ids=["SETITEM", "SETITEMS", "DICT"]
)
def test_keys_that_are_no_names_are_refused(tmp_path, end):
    """Hashing a tuple nested 200,000 deep would end the process."""
    start = {b"s": b"})", b"u": b"}()", b"d": b"()"}[end[2:3]]
    (tmp_path / "batch").write_bytes(b"\x80\x02" + start + b"\x85" * 200_000 + end)
    with pytest.raises(ValueError, match=r"refused, .* a dict with a tuple as a key") as caught:
        cifar.read([tmp_path / "batch"])
    assert str(tmp_path / "batch") in str(caught.value)


def test_a_label_of_thousands_of_digits_is_told(tmp_path):
    content = pickle.dumps({"data": DATA, "labels": [0, 9]}, protocol=3)
    before, _, after = content.rpartition(b"K\x09")
    (tmp_path / "batch").write_bytes(before + b"I0x" + b"f" * 6000 + b"\n" + after)
    with pytest.raises(ValueError, match="from 0 to a number of more than 30 digits") as caught:
        cifar.read([tmp_path / "batch"])
    assert str(tmp_path / "batch") in str(caught.value)


class OfShape:
    """Pickled as an array of a shape that NumPy would refuse."""

    def __init__(self, shape: object) -> None:
        self.shape = shape

    def __reduce__(self):
        create, arguments, _ = DATA.__reduce__()
        return create, arguments, (1, self.shape, np.dtype("u1"), False, DATA.tobytes())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([1, 2], "holds a list"),
        (
            {"data": DATA, "labels": [0, 1, 2, 2**70]},
            "from 0 to 1180591620717411303424; expected 0",
        ),
        ({"data": DATA, "labels": [0, 1, 2, -1]}, "from -1 to 2; expected 0 to 99"),
        ({"data": OfShape((None, 3072)), "labels": [0] * 4}, r"shape \(None, 3072\)"),
        ({"data": OfShape((4.0, 3072)), "labels": [0] * 4}, r"shape \(4.0, 3072\)"),
        ({"data": OfShape((4, 3072.0)), "labels": [0] * 4}, r"shape \(4, 3072.0\)"),
        ({"\ud800": 1}, "no array under `data`"),
        ({"labels": [0]}, "no array under `data`"),
        ({"data": DATA[:, :5], "labels": [0] * 4}, r"shape \(4, 5\)"),
        ({"data": DATA.astype(np.int16), "labels": [0] * 4}, "type 'i2'"),
        ({"data": DATA}, "no list of integers"),
        ({"data": DATA, "labels": ["cat"] * 4}, "no list of integers"),
        ({"data": DATA, "labels": [0]}, "4 images but .* 1 labels"),
    ],
)
def test_other_content_is_named(tmp_path, content, text):
    path = written(tmp_path / "batch", content)
    with pytest.raises(ValueError, match=text) as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)


def test_a_shape_too_deep_to_be_told_is_named(tmp_path):
    path = written(tmp_path / "batch", {"data": OfShape("here"), "labels": [0] * 4}, protocol=3)
    content = path.read_bytes()
    assert content.count(b"X\4\0\0\0here") == 1
    path.write_bytes(content.replace(b"X\4\0\0\0here", b")" + b"\x85" * 2000))
    with pytest.raises(ValueError, match=r"shape \(\(\(") as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 50, 2000])
def test_truncated_batches_are_named(tmp_path, length):
    path = written(tmp_path / "batch", {"data": DATA, "labels": [0] * 4})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(
        ValueError, match=r"is damaged or truncated.*expected a CIFAR batch"
    ) as caught:
        cifar.read([path])
    assert str(path) in str(caught.value)
