"""Arrays in files: .npz, SVHN's .mat, and the corrupted sets' .npy."""

import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from daedl.bench.data import corrupted, read_npz, svhn

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
def test_npz_images_come_channels_first(tmp_path, images, expected):
    np.savez(tmp_path / "mine.npz", images=images, labels=LABELS.astype(np.uint8)[:, None])
    found = read_npz(tmp_path / "mine.npz", "train")
    assert np.array_equal(found.images.numpy(), expected)
    assert found.labels.tolist() == LABELS.tolist()
    assert (found.name, found.split, found.class_names) == ("mine", "train", None)


def test_npz_may_name_its_classes(tmp_path):
    np.savez_compressed(
        tmp_path / "mine.npz", images=GREY[:2], labels=LABELS[:2], class_names=["no", "yes"]
    )
    assert read_npz(tmp_path / "mine.npz").class_names == ("no", "yes")


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"images": GREY}, "holds images; expected `images` and `labels`"),
        ({"images": GREY / 255, "labels": LABELS}, "are float64; expected uint8"),
        ({"images": GREY[0], "labels": LABELS}, "expected \\(N, H, W\\)"),
        ({"images": GREY.reshape(10, 3, 10, 1)[:, :, :3], "labels": LABELS}, "no doubt which axis"),
        ({"images": COLOUR[:0], "labels": LABELS[:0]}, "at least one"),
        ({"images": COLOUR, "labels": LABELS[:9]}, "10 images but .* 9 labels"),
        ({"images": COLOUR, "labels": LABELS / 2}, "are float64 of shape"),
        ({"images": COLOUR, "labels": np.eye(10, dtype=int)}, "argmax"),
        ({"images": np.array([{}]), "labels": LABELS}, "damaged, or not what its name says"),
    ],
)
def test_npz_of_another_kind_is_named(tmp_path, arrays, text):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=text) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)


def test_damaged_or_missing_npz_is_named(tmp_path):
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


def test_svhn_has_its_zero_back(tmp_path):
    path = tmp_path / "test_32x32.mat"
    images = np.random.default_rng(2).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(path, {"X": images, "y": np.array([[10], [1], [9], [10]], dtype=np.uint8)})
    pixels, labels = svhn.read(path)
    assert labels.tolist() == [0, 1, 9, 0]
    assert np.array_equal(pixels.numpy(), images.transpose(3, 2, 0, 1))


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "lacks X"),
        ({"X": np.zeros((32, 32), np.uint8), "y": np.ones((2, 1), np.uint8)}, "lacks X"),
        (
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.zeros((2, 1), np.uint8)},
            "from 0 to 0; expected 1 to 10",
        ),
        (
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1), np.uint8)},
            "2 images but .* 3 labels",
        ),
    ],
)
def test_other_mat_files_are_named(tmp_path, arrays, text):
    path = tmp_path / "test_32x32.mat"
    savemat(path, arrays)
    with pytest.raises(ValueError, match=text) as caught:
        svhn.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [0, 60, 400])
def test_a_damaged_mat_file_is_named(tmp_path, length):
    path = tmp_path / "test_32x32.mat"
    images = np.random.default_rng(2).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(path, {"X": images, "y": np.ones((4, 1), np.uint8)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"test_32x32.mat"):
        svhn.read(path)


def test_severities_follow_each_other(tmp_path):
    images, labels = tmp_path / "fog.npy", tmp_path / "labels.npy"
    np.save(images, COLOUR)
    np.save(labels, LABELS.astype(np.uint8))
    for severity in range(1, 6):
        pixels, targets = corrupted.read(images, labels, severity)
        assert targets.tolist() == [2 * severity - 2, 2 * severity - 1]
        expected = COLOUR[2 * severity - 2 : 2 * severity].transpose(0, 3, 1, 2)
        assert np.array_equal(pixels.numpy(), expected)
    assert len(corrupted.read(images, labels)[0]) == 10
    np.save(images, COLOUR[:9])
    with pytest.raises(ValueError, match="five severities"):
        corrupted.read(images, labels, 1)


def test_npy_with_objects_or_cut_short_is_named(tmp_path):
    images, labels = tmp_path / "fog.npy", tmp_path / "labels.npy"
    np.save(labels, LABELS)
    np.save(images, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"fog.npy is damaged"):
        corrupted.read(images, labels)
    np.save(images, COLOUR)
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"fog.npy is damaged"):
        corrupted.read(images, labels)
