"""Folders of images: conversion, resizing, labels from subfolders, unreadable files."""

import builtins
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from daedl.data import DataWarning, read_folder, read_images

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cats and one dog, 8x8, and hidden files."""
    save(tmp_path / "pets" / "dog" / "1.PNG", PIXELS[0])
    save(tmp_path / "pets" / "cat" / "1.png", PIXELS[1])
    save(tmp_path / "pets" / "cat" / "2.png", PIXELS[2])
    (tmp_path / "pets" / "cat" / ".DS_Store").write_bytes(b"")
    (tmp_path / "pets" / ".git").mkdir()
    return tmp_path / "pets"


def test_classes_are_the_subfolders_in_alphabetical_order(folder):
    found = read_folder(folder, size=None, split="train")
    assert found.class_names == ("cat", "dog")
    assert found.labels.tolist() == [0, 0, 1]
    assert np.array_equal(found.images.permute(0, 2, 3, 1).numpy(), PIXELS[[1, 2, 0]])
    assert (found.name, found.split) == ("pets", "train")


def test_class_names_determine_the_labels(folder):
    found = read_folder(folder, class_names=("dog", "cat"))
    assert found.labels.tolist() == [0, 1, 1]
    assert found.shape == (3, 32, 32)
    with pytest.raises(ValueError, match="cow, dog"):
        read_folder(folder, class_names=("cow", "cat"))


def test_hidden_subfolders_are_ignored(folder):
    save(folder / "_background" / "1.png", PIXELS[3])
    save(folder / ".thumbnails" / "1.png", PIXELS[4])
    save(folder / "cat" / ".thumbnails" / "large" / "1.png", PIXELS[4])  # no warning
    found = read_folder(folder, size=None)
    assert found.class_names == ("_background", "cat", "dog")
    assert found.labels.tolist() == [0, 1, 1, 2]


def test_unlabelled_folders_are_read_recursively(folder):
    save(folder / "top.png", PIXELS[3])
    save(folder / ".thumbs" / "top.png", PIXELS[3])
    found = read_folder(folder, labelled=False)
    assert len(found) == 4
    assert found.class_names is None
    assert found.labels.unique().tolist() == [0]


def test_images_are_resized_to_height_and_width(tmp_path):
    path = save(tmp_path / "wide.png", np.zeros((10, 20, 3), np.uint8))
    assert read_images([path], size=(4, 6)).shape == (1, 3, 4, 6)
    assert read_images([path], size=5, channels=1).shape == (1, 1, 5, 5)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "RGB"])
def test_every_mode_is_converted_to_colour_or_grey(tmp_path, mode):
    picture = Image.fromarray(np.full((4, 4, 3), 255, np.uint8)).convert(mode)
    picture.save(tmp_path / "white.png")
    for channels in (1, 3):
        image = read_images([tmp_path / "white.png"], channels=channels, size=None)
        assert image.shape == (1, channels, 4, 4)
        assert (image == 255).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_become_white(tmp_path, mode):
    """Black on transparent, as in exported icons; without alpha all pixels are black."""
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:2, :, 3] = 255
    path = tmp_path / "icon.png"
    if mode == "P":
        palette = Image.fromarray((pixels[..., 3] > 0).astype(np.uint8), "L").convert("P")
        palette.putpalette([0, 0, 0, 0, 0, 0])
        palette.save(path, transparency=b"\x00\xff")
    else:
        Image.fromarray(pixels).convert(mode).save(path)
    for channels in (1, 3):
        image = read_images([path], channels=channels, size=None)[0]
        assert (image[:, :2] == 0).all()
        assert (image[:, 2:] == 255).all()


@pytest.mark.parametrize("suffix", ["png", "bmp", "webp", "tif", "TIFF"])
def test_lossless_formats(tmp_path, suffix):
    options = {"lossless": True} if suffix == "webp" else {}
    path = save(tmp_path / "cat" / f"1.{suffix}", PIXELS[0], **options)
    assert np.array_equal(read_images([path], size=None)[0].permute(1, 2, 0).numpy(), PIXELS[0])
    assert len(read_folder(tmp_path)) == 1


def test_cmyk_is_converted(tmp_path):
    ink = np.zeros((8, 8, 4), np.uint8)
    ink[..., 1:3] = 255  # magenta and yellow give red
    Image.fromarray(ink, "CMYK").save(tmp_path / "print.jpg", quality=100)
    red, green, blue = read_images([tmp_path / "print.jpg"], size=None)[0]
    assert red.min() > 250
    assert max(green.max(), blue.max()) < 5


def test_only_the_first_page_is_read(tmp_path):
    first, second = (Image.fromarray(each) for each in PIXELS[:2])
    first.save(tmp_path / "pages.tif", save_all=True, append_images=[second])
    pixels = read_images([tmp_path / "pages.tif"], size=None)[0]
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), PIXELS[0])


@pytest.mark.parametrize(
    "pixels", [np.full((4, 4), 70_000, np.int32), np.ones((4, 4), np.float32)], ids=["int", "float"]
)
def test_deeper_pixels_are_rejected(tmp_path, pixels):
    path = save(tmp_path / "deep.tif", pixels)
    with pytest.raises(ValueError, match="not 8 or 16 bits"):
        read_images([path], size=None)


def test_single_pixels_are_rejected(folder):
    save(folder / "dog" / "tracker.png", PIXELS[0][:1, :1])
    with pytest.raises(ValueError, match=r"tracker\.png .*single pixel"):
        read_folder(folder)


def test_damaged_exif_data_are_ignored(tmp_path):
    path = save(tmp_path / "photo.png", PIXELS[0], exif=b"junk")
    assert np.array_equal(read_images([path], size=None)[0].permute(1, 2, 0).numpy(), PIXELS[0])


def test_links_to_folders_are_followed_once(folder, tmp_path):
    save(tmp_path / "elsewhere" / "deep" / "1.png", PIXELS[3])
    (folder / "cow").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(folder)
    assert len(read_folder(folder, labelled=False)) == 4
    (folder / "cow").unlink()
    (folder / "cow").symlink_to(tmp_path / "elsewhere" / "deep")
    assert read_folder(folder).class_names == ("cat", "cow", "dog")


def test_links_that_lead_nowhere_are_named_and_pipes_are_ignored(folder):
    (folder / "cat" / "loop.png").symlink_to("loop.png")
    (folder / "cat" / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(ValueError, match=r"gone\.png \(No such file.*loop\.png \(Too many levels"):
        read_folder(folder)
    (folder / "cat" / "loop.png").unlink()
    (folder / "cat" / "gone.png").unlink()
    os.mkfifo(folder / "cat" / "pipe.png")
    with pytest.warns(DataWarning, match=r"pipe\.png"):
        assert len(read_folder(folder)) == 3


def test_files_without_permission_are_named(folder, monkeypatch):
    """Simulated, because root can read every file."""
    opened = builtins.open

    def deny(path, *rest, **options):
        if str(path).endswith("dog/1.PNG"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(builtins, "open", deny)
    with pytest.raises(ValueError, match=r"1\.PNG can't be read \(Permission denied"):
        read_folder(folder)


def test_class_names_that_are_not_utf_8_are_rejected(folder):
    save(folder / os.fsdecode(b"caf\xe9") / "1.png", PIXELS[0])
    with pytest.raises(ValueError, match=r"not UTF-8: b'caf\\xe9'"):
        read_folder(folder)


@pytest.mark.slow
def test_messages_name_few_of_many_classes(tmp_path):
    image = save(tmp_path / "1.png", PIXELS[0])
    many = tmp_path / "many"
    for i in range(1_010):
        (many / f"{i:05}").mkdir(parents=True)
        os.link(image, many / f"{i:05}" / "1.png")
        (many / f"{i:05}" / "notes.txt").touch()
    with pytest.warns(DataWarning, match="1010 .txt") as caught:
        assert read_folder(many, size=8).num_classes == 1_010
    assert len(caught) == 1
    with pytest.raises(ValueError, match="1,000 more") as wrong:
        read_folder(many, class_names=("cat", "dog"))
    assert len(str(wrong.value)) < 1000


def test_unreadable_folders_raise(folder, monkeypatch):
    """Simulated, because root can read every folder."""
    scan = os.scandir

    def deny(path):
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(PermissionError, match="dog"):
        read_folder(folder, labelled=False)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_images_are_scaled(tmp_path, suffix):
    path = save(tmp_path / f"deep.{suffix}", np.array([[0, 256, 65535]], dtype=np.uint16))
    assert read_images([path], channels=1, size=None).flatten().tolist() == [0, 1, 255]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / f"photo.{suffix}", np.zeros((4, 12, 3), np.uint8), exif=exif)
    assert read_images([path], size=None).shape == (1, 3, 12, 4)


def test_different_sizes_require_a_size(folder):
    save(folder / "dog" / "2.png", PIXELS[0][:5])
    with pytest.raises(ValueError, match="5x8") as caught:
        read_folder(folder, size=None)
    assert str(folder / "dog" / "2.png") in str(caught.value)
    assert len(read_folder(folder)) == 4


def test_empty_and_missing_folders(folder, tmp_path):
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="no image in") as caught:
        read_folder(folder)
    assert str(folder / "empty") in str(caught.value)
    (folder / "bare").mkdir()
    with pytest.raises(ValueError, match=r"bare, .*empty"):
        read_folder(folder)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match="no subfolder"):
        read_folder(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_folder(tmp_path / "nowhere")


def test_other_files_are_ignored_with_a_warning(folder):
    (folder / "cat" / "notes.txt").write_text("meow")
    with pytest.warns(DataWarning, match=r"notes\.txt"):
        assert len(read_folder(folder)) == 3


@pytest.mark.parametrize("place", ["3.png", "cat/small/3.png"])
def test_images_outside_of_class_folders_are_ignored_with_a_warning(folder, place):
    save(folder / place, PIXELS[3])
    save(folder / ".3.png", PIXELS[3])
    with pytest.warns(DataWarning, match=rf"1 images .*{place}"):
        assert len(read_folder(folder)) == 3


def test_invalid_options_are_rejected(folder):
    for options in ({"channels": 2}, {"size": 0}):
        with pytest.raises(ValueError, match="1 channel"):
            read_folder(folder, **options)
    with pytest.raises(ValueError, match="at least one"):
        read_images([])


@pytest.mark.parametrize("kind", ["text", "cut", "empty", "gif"])
def test_unreadable_images_are_named(folder, kind):
    buffer = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(buffer, "GIF")
    whole = (folder / "cat" / "1.png").read_bytes()
    content = {"text": b"hello", "cut": whole[: len(whole) // 2], "empty": b"", "gif": buffer}
    bad = content[kind]
    (folder / "dog" / "bad.png").write_bytes(bad.getvalue() if kind == "gif" else bad)
    with pytest.raises(ValueError, match=r"bad\.png"):
        read_folder(folder)


def black(side: int, rows: int, extra: bytes = b"") -> bytes:
    """A 1-bit PNG whose header declares `side` x `side` pixels, with data for `rows` rows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    text = chunk(b"zTXt", b"notes\0\0" + extra) if extra else b""
    data = chunk(b"IDAT", zlib.compress(bytes(rows * (1 + -(-side // 8)))))
    return b"\x89PNG\r\n\x1a\n" + header + text + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 50_000, (1 << 31) - 1])
def test_images_with_too_many_pixels_are_rejected(folder, side):
    """A small PNG that declares 100 million pixels or more."""
    path = folder / "dog" / "bomb.png"
    path.write_bytes(black(side, 1 if side < 1 << 30 else 0))
    with pytest.raises(ValueError, match=r"bomb\.png .*too large") as caught:
        read_folder(folder)
    assert str(path) in str(caught.value)


def test_valid_decompression_bombs_are_rejected(folder, monkeypatch):
    """A valid file of 12 kB, just above the limit."""
    path = folder / "dog" / "bomb.png"
    path.write_bytes(black(9460, 9460))
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match=r"bomb\.png .*too large") as caught:
        read_folder(folder)
    assert str(path) in str(caught.value)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(path) as image:
        assert image.getextrema() == (0, 0)  # the file is valid


def test_decompression_bombs_in_metadata_are_rejected(folder, little_memory):
    path = folder / "dog" / "bomb.png"
    path.write_bytes(black(8, 8, zlib.compress(bytes(1 << 24))))
    with little_memory(), pytest.raises(ValueError, match=r"bomb\.png"):
        read_folder(folder)


def test_images_are_writable(folder):
    images = read_folder(folder).images
    images += 1
    assert images.dtype == torch.uint8
