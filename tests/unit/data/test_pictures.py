"""Memory of decoding large pictures, and equality with the conversion of a complete picture."""

import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from daedl.data.pictures import decode, pixels_of
from daedl_bench.robustness._damage import many_scans

SIDE = 3000  # of the large pictures, in pixels
# Prints the bytes of additional memory at the peak, per pixel, of the large picture in each folder. A process
# that is forked for each has a peak of its own, and imports nothing.
SCRIPT = """
import os, sys
from pathlib import Path
from daedl.data.pictures import decode

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))

for path in map(Path, sys.argv[2:]):
    decode(path.with_stem("small"), 3, (32, 32), "stretch")  # imports what is needed
    child = os.fork()
    if not child:
        before = memory("VmRSS")
        decode(path, 3, (32, 32), "stretch")
        print((memory("VmHWM") - before) / int(sys.argv[1]) ** 2, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
# Pillow stores 4 bytes per pixel of RGB and RGBA, 2 of I;16 and 1 of L and P: once as decoded, once as RGB
# if it differs. 1 is added for all else. A JPEG is decoded at an eighth of its width.
LIMITS = {
    ("RGB", "png"): 4 + 1,
    ("RGBA", "png"): 8 + 1,
    ("I;16", "png"): 6 + 1,
    ("P", "png"): 5 + 1,
    ("RGB", "jpg"): 1,
}


def colours(mode: str, size: tuple[int, int]) -> Image.Image:
    """Smooth random colours; deeper modes are converted from 8 bits."""
    noise = np.random.default_rng(0).integers(0, 256, (7, 9, 4), dtype=np.uint8)
    image = Image.fromarray(noise, "RGBA").resize(size, Image.Resampling.BICUBIC)
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200)
    if mode == "P":
        image = image.convert("RGB").quantize(16)
        image.info["transparency"] = 3
        return image
    return image.convert(mode)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_pictures_take_little_memory(tmp_path):
    paths = []
    for mode, suffix in LIMITS:
        folder = tmp_path / f"{mode}-{suffix}"
        folder.mkdir()
        colours(mode, (8, 8)).save(folder / f"small.{suffix}")
        paths.append(folder / f"large.{suffix}")
        colours(mode, (SIDE, SIDE)).save(paths[-1], compress_level=1)
    command = [sys.executable, "-c", SCRIPT, str(SIDE), *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for (kind, limit), taken in zip(LIMITS.items(), result.stdout.split(), strict=True):
        assert float(taken) < limit, kind


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_several_strips_are_converted_as_one(mode, channels):
    image = colours(mode, (1100, 1900))
    whole = image
    if mode == "I;16":
        whole = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
    elif mode in ("LA", "RGBA", "P"):
        white = Image.new("RGBA", image.size, "white")
        whole = Image.alpha_composite(white, image.convert("RGBA"))
    expected = np.asarray(whole.convert("L" if channels == 1 else "RGB"))
    before = image.tobytes()
    converted = pixels_of(image, channels).permute(1, 2, 0)
    assert np.array_equal(converted.numpy().reshape(expected.shape), expected)
    assert image.tobytes() == before


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_reduced_jpeg_is_close_to_the_complete_one(tmp_path, orientation):
    image = colours("RGB", (1600, 1000)).filter(ImageFilter.GaussianBlur(2))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "large.jpg"
    image.save(path, quality=95, exif=exif)
    reduced = decode(path, 3, (32, 48), "stretch")
    with Image.open(path) as opened:
        complete = pixels_of(opened, 3, (32, 48))
    difference = (reduced.int() - complete.int()).abs()
    assert 0 < difference.max() <= 4
    assert difference.float().mean() < 0.5


@pytest.mark.parametrize("size", [(60, 90), (32, 32), (10, 300)])
def test_a_small_jpeg_is_decoded_completely(tmp_path, size):
    path: Path = tmp_path / "small.jpg"
    colours("RGB", size).save(path)
    with Image.open(path) as opened:
        complete = pixels_of(opened, 3, (32, 32))
    assert torch.equal(decode(path, 3, (32, 32), "stretch"), complete)


def test_jpegs_of_many_scans_are_not_decoded(tmp_path):
    """Each of them is a pass over all pixels."""
    with pytest.raises(ValueError, match="scans"):
        decode(BytesIO(many_scans(64, 5000)), 1, (8, 8), "stretch")
    path = tmp_path / "a.jpg"
    path.write_bytes(many_scans(64, 5000))
    with pytest.raises(ValueError, match="scans"):
        decode(path, 1, (8, 8), "stretch")
    assert decode(BytesIO(many_scans(64, 50)), 1, (8, 8), "stretch").shape == (1, 8, 8)


def test_scans_behind_the_end_and_in_metadata_do_not_count():
    """Phones append a video; metadata contain other pictures."""
    video, encoded = b"\xff\xda" * 1000, many_scans(64, 2)
    comment = b"\xff\xfe" + (2002).to_bytes(2, "big") + video
    content = encoded[:2] + comment[:2004] + encoded[2:] + video
    assert decode(BytesIO(content), 1, (8, 8), "stretch").shape == (1, 8, 8)
