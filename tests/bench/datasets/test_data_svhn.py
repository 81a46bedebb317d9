"""SVHN's MATLAB files: read as SciPy writes them; damage raises and never crashes."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from daedl_bench.datasets.formats import svhn

RANDOM = np.random.default_rng(0)
TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
DIGITS = RANDOM.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
LABELS = np.array([[10], [1], [9], [10]], dtype=np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test_32x32.mat"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_keep_dtype_and_shape(path, dtype, compressed):
    arrays = {
        "a": np.ones((1, 1), dtype),
        "of_several_axes": RANDOM.integers(0, 100, (3, 5, 2, 7)).astype(dtype),
        "empty": np.zeros((0, 3), dtype),
    }
    savemat(path, arrays, do_compression=compressed)
    result = dict(svhn.read_arrays(path.read_bytes()))
    assert set(result) == set(arrays)
    for name, array in arrays.items():
        assert result[name].dtype == array.dtype
        assert np.array_equal(result[name], array)


@pytest.mark.parametrize("compressed", [False, True])
def test_label_10_is_the_digit_0(path, compressed):
    savemat(path, {"X": DIGITS, "y": LABELS}, do_compression=compressed)
    images, labels = svhn.read([path])
    assert labels[:, 0].tolist() == [0, 1, 9, 0]
    assert np.array_equal(images, DIGITS.transpose(3, 0, 1, 2))


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def compress(content: bytes) -> bytes:
    packed = zlib.compress(content[128:])
    return content[:128] + words(15, len(packed)) + packed


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b"\0\1IM", b"\1\0MI", "signature"),
        (words(14, 12344), words(14, 1 << 31), "2,147,483,648 bytes is truncated"),
        (words(14, 12344), words(14, 2**32 - 1), "4,294,967,295 bytes is truncated"),
        (words(14, 12344), words(13, 12344), "type 13"),
        # scipy.io.loadmat ends the process on these two, and allocates 2 GB on the third.
        (words(2, 12288), words(8, 12288), "type 8 is not numeric"),
        (words(2, 12288), words(0x8000, 12288), "type 32768 is not numeric"),
        (words(2, 12288), words(2, 2**31 - 1), "2,147,483,647 bytes is truncated"),
        (words(32, 32, 3, 4), words(32, 32, 3, 1 << 20), "holds 12,288 bytes"),
        (words(32, 32, 3, 4), words(0, 0, 0, 0), "holds 12,288 bytes"),
        (words(32, 32, 3, 4), words(2**32 - 32, 2**32 - 32, 3, 4), "holds 12,288 bytes"),
        (words(9, 0, 5, 16), words(4, 0, 5, 16), "class 4 and type 2 is not numeric"),
        (words(9, 0, 5, 16), words(0x809, 0, 5, 16), "class 9 and type 2 is not numeric"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_files_are_named_and_allocate_little(
    path, old, new, text, compressed, little_memory
):
    savemat(path, {"X": DIGITS})
    content = path.read_bytes()
    assert content.count(old) == 1
    content = content.replace(old, new)
    path.write_bytes(compress(content) if compressed else content)
    with little_memory(), pytest.raises(ValueError, match=text) as caught:
        svhn.read([path])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_size_limit_holds_for_all_arrays_together(path, number):
    arrays = {f"a{i}": np.zeros((60, 1000), np.uint8) for i in range(number)}
    savemat(path, arrays, do_compression=True)
    reader = svhn.read_arrays(path.read_bytes(), limit=64_000)
    if number == 1:
        assert dict(reader)["a0"].shape == (60, 1000)
    else:
        with pytest.raises(ValueError, match="decompresses to more than"):
            dict(reader)


def test_zlib_checksum_is_verified(path):
    savemat(path, {"X": DIGITS[..., :1]}, do_compression=True)
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))
    with pytest.raises(ValueError, match="incorrect data check"):
        svhn.read([path])


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"X": DIGITS}, "lacks X"),
        ({"X": DIGITS[..., 0, 0], "y": LABELS}, "lacks X"),
        ({"X": DIGITS, "y": LABELS - 1}, "from 0 to 9; expected 1 to 10"),
        ({"X": DIGITS, "y": np.array([["a"]])}, "not numeric"),
    ],
)
def test_other_contents_are_named(path, arrays, text):
    savemat(path, arrays)
    with pytest.raises(ValueError, match=text) as caught:
        svhn.read([path])
    assert str(path) in str(caught.value)
