"""MATLAB files: read as SciPy writes them; what is damaged ends in an error, not in a crash."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from daedl.data import arrays
from daedl_bench.datasets import svhn
from daedl_bench.datasets.matlab import read_mat

RANDOM = np.random.default_rng(0)
TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
DIGITS = RANDOM.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
LABELS = np.array([[10], [1], [9], [10]], dtype=np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test_32x32.mat"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_arrays_come_back_with_type_and_shape(path, kind, packed):
    arrays = {
        "a": np.ones((1, 1), kind),
        "of_several_axes": RANDOM.integers(0, 100, (3, 5, 2, 7)).astype(kind),
        "empty": np.zeros((0, 3), kind),
    }
    savemat(path, arrays, do_compression=packed)
    found = read_mat(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


@pytest.mark.parametrize("packed", [False, True])
def test_svhn_has_its_zero_back(path, packed):
    savemat(path, {"X": DIGITS, "y": LABELS}, do_compression=packed)
    pixels, labels = svhn.read(path)
    assert labels.tolist() == [0, 1, 9, 0]
    assert np.array_equal(pixels.numpy(), DIGITS.transpose(3, 2, 0, 1))


def altered(content: bytes, old: bytes, new: bytes) -> bytes:
    assert content.count(old) == 1
    return content.replace(old, new)


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def repacked(content: bytes) -> bytes:
    return (
        content[:128] + words(15, len(zlib.compress(content[128:]))) + zlib.compress(content[128:])
    )


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b"\0\1IM", b"\1\0MI", "does not start as MATLAB's version 5"),
        (words(14, 12344), words(14, 1 << 31), "of 2,147,483,648 bytes is cut off"),
        (words(14, 12344), words(13, 12344), "type 13 where an array is expected"),
        # SciPy's reader ends the process here.
        (words(2, 12288), words(8, 12288), "type 8 is not one of numbers"),
        (words(2, 12288), words(0x8000, 12288), "type 32768 is not one of numbers"),
        (words(32, 32, 3, 4), words(32, 32, 3, 1 << 20), "holds 12,288 bytes"),
        (words(32, 32, 3, 4), words(0, 0, 0, 0), "holds 12,288 bytes"),
        (words(32, 32, 3, 4), words(2**32 - 32, 2**32 - 32, 3, 4), "holds 12,288 bytes"),
        (words(9, 0, 5, 16), words(4, 0, 5, 16), "class 4 and type 2 is not one of numbers"),
        (words(9, 0, 5, 16), words(0x809, 0, 5, 16), "class 9 and type 2 is not one of numbers"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_damaged_is_named_and_takes_no_memory(path, old, new, text, packed, little_memory):
    savemat(path, {"X": DIGITS})
    content = altered(path.read_bytes(), old, new)
    if packed:
        content = repacked(content)
        text = text.replace("is cut off", "unpacks to fewer")
    path.write_bytes(content)
    with little_memory(), pytest.raises(ValueError, match=text) as caught:
        svhn.read(path)
    assert str(path) in str(caught.value)


def test_what_unpacks_to_too_much_is_refused_unread(path, little_memory):
    savemat(path, {"X": DIGITS})
    content = altered(path.read_bytes(), words(14, 12344), words(14, 2**32 - 1))
    path.write_bytes(repacked(content))
    with (
        little_memory(),
        pytest.raises(ValueError, match="unpacks to 4,294,967,295 bytes") as caught,
    ):
        svhn.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_the_limit_is_that_of_all_arrays_together(path, number, monkeypatch):
    monkeypatch.setattr(arrays, "LARGEST", 64_000)
    packed = {f"a{i}": np.zeros((60, 1000), np.uint8) for i in range(number)}
    savemat(path, packed, do_compression=True)
    if number == 1:
        assert read_mat(path)["a0"].shape == (60, 1000)
        return
    with pytest.raises(ValueError, match=r"unpacks to 120,\d+ bytes, more than 64,000") as caught:
        svhn.read(path)
    assert str(path) in str(caught.value)


def test_another_checksum_is_noticed(path):
    savemat(path, {"X": DIGITS[..., :1]}, do_compression=True)
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))
    with pytest.raises(ValueError, match="incorrect data check"):
        svhn.read(path)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"X": DIGITS}, "lacks X"),
        ({"X": DIGITS[..., 0, 0], "y": LABELS}, "lacks X"),
        ({"X": DIGITS, "y": LABELS - 1}, "from 0 to 9; expected 1 to 10"),
        ({"X": DIGITS, "y": LABELS[:3]}, "4 images but .* 3 labels"),
        ({"X": DIGITS, "y": LABELS + 0.5}, "labels in .* are float64"),
        ({"X": DIGITS, "y": np.array([["a"]])}, "not one of numbers"),
        ({"X": DIGITS[..., :0], "y": LABELS[:0]}, "at least one"),
    ],
)
def test_other_files_are_named(path, arrays, text):
    savemat(path, arrays)
    with pytest.raises(ValueError, match=text) as caught:
        svhn.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [0, 60, 130, 400])
def test_a_file_cut_off_is_named(path, length):
    savemat(path, {"X": DIGITS, "y": LABELS})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"test_32x32.mat is damaged"):
        svhn.read(path)
