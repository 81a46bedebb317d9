"""Arrays in .npz files."""

import io
import zipfile

import numpy as np
import pytest

from daedl.data import read_npz

GREY = np.random.default_rng(0).integers(0, 256, (10, 6, 5), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (10, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(10)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (GREY, GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
    ],
)
def test_images_are_converted_to_channels_first(tmp_path, images, expected):
    np.savez(tmp_path / "mine.npz", images=images, labels=LABELS.astype(np.uint8)[:, None])
    found = read_npz(tmp_path / "mine.npz", "train")
    assert np.array_equal(found.images.numpy(), expected)
    assert found.labels.tolist() == LABELS.tolist()
    assert (found.name, found.split, found.class_names) == ("mine", "train", None)


def test_labels_are_optional_for_unlabelled_images(tmp_path):
    np.savez(tmp_path / "others.npz", images=GREY)
    found = read_npz(tmp_path / "others.npz", labelled=False)
    assert len(found) == len(GREY)
    assert found.labels.tolist() == [0] * len(GREY)
    with pytest.raises(ValueError, match="`labels`"):
        read_npz(tmp_path / "others.npz")


def test_class_names_are_read(tmp_path):
    np.savez_compressed(
        tmp_path / "mine.npz", images=GREY[:2], labels=LABELS[:2], class_names=["no", "yes"]
    )
    assert read_npz(tmp_path / "mine.npz").class_names == ("no", "yes")


@pytest.mark.parametrize(
    ("arrays", "keyword"),
    [
        ({"images": GREY}, "`labels`"),
        ({"images": GREY / 255, "labels": LABELS}, "uint8"),
        ({"images": GREY[0], "labels": LABELS}, r"\(N, H, W\)"),
        ({"images": GREY.reshape(10, 3, 10, 1)[:, :, :3], "labels": LABELS}, "channel axis"),
        ({"images": COLOUR[:0], "labels": LABELS[:0]}, "N > 0"),
        ({"images": COLOUR, "labels": LABELS[:9]}, "10 images but .* 9 labels"),
        ({"images": COLOUR, "labels": LABELS / 2}, "are float64 of shape"),
        ({"images": COLOUR, "labels": np.eye(10, dtype=int)}, "argmax"),
        ({"images": np.array([{}]), "labels": LABELS}, "objects"),
        ({"images": COLOUR, "labels": np.array(3)}, r"shape \(\)"),
        ({"images": COLOUR, "labels": LABELS - 1}, "from -1 to 8"),
        ({"images": COLOUR, "labels": LABELS, "class_names": ["a"]}, "0 to 0"),
        ({"images": COLOUR, "labels": LABELS, "class_names": "a"}, r"strings \(C,\)"),
        ({"images": COLOUR, "labels": LABELS, "class_names": LABELS}, r"strings \(C,\)"),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path, arrays, keyword):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=keyword) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)


def test_damaged_and_missing_files(tmp_path):
    path = tmp_path / "mine.npz"
    with pytest.raises(FileNotFoundError, match=r"no file at .*mine.npz"):
        read_npz(path)
    np.savez(path, images=GREY, labels=LABELS)
    whole = path.read_bytes()
    for content in (whole[:200], b"hello", b"", b"\x80\x04."):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"mine.npz is damaged"):
            read_npz(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY broken")
    with pytest.raises(ValueError, match=r"mine.npz is damaged"):
        read_npz(path)


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def test_images_of_different_sizes_are_rejected(tmp_path):
    images = np.empty(2, dtype=object)
    images[:] = [np.zeros((4, 4), np.uint8), np.zeros((5, 5), np.uint8)]
    np.savez(tmp_path / "mixed.npz", images=images, labels=np.arange(2))
    with pytest.raises(ValueError, match=r"mixed\.npz.*resize"):
        read_npz(tmp_path / "mixed.npz")


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("images", header((1 << 10, 1 << 10, 1 << 10)) + bytes(10)),
        ("images", header((1 << 40, 28, 28))),
        ("images", header((1 << 62, 28, 28))),
        ("class_names", header((1 << 40,), "<U0")),
    ],
)
def test_wrong_headers_allocate_no_memory(tmp_path, member, content, little_memory):
    path = tmp_path / "bomb.npz"
    np.savez(path, **{key: COLOUR for key in ("images", "labels") if key != member})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{member}.npy", content)
    with little_memory(), pytest.raises(ValueError, match=f"{member}.npy declares") as caught:
        read_npz(path)
    assert str(path) in str(caught.value)


def test_decompression_bombs_are_not_decompressed(tmp_path, little_memory):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, images=np.zeros((1 << 10, 1 << 10), np.uint8))
    content = path.read_bytes()
    # Set the size in the central directory to 4 GB less two bytes.
    place = content.rindex(b"PK\x01\x02") + 24
    path.write_bytes(content[:place] + b"\xfe\xff\xff\xff" + content[place + 4 :])
    with little_memory(), pytest.raises(ValueError, match="4,294,967,294"):
        read_npz(path)


def test_other_arrays_are_ignored(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, images=COLOUR, labels=LABELS, notes=np.array([{}]))
    assert len(read_npz(path)) == 10
