"""MNIST-C against files that the published generator made, where they are at hand."""

import numpy as np
import pytest
import torch

from daedl_bench.corruptions import MNIST_C, corrupt

COUNT = 400
# Where nothing is drawn at random.
FIXED = ("scale", "brightness", "stripe", "canny_edges")


@pytest.fixture(scope="module")
def digits(data_root):
    file = data_root / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    if not file.exists():
        pytest.skip("MNIST is not there")
    pixels = np.frombuffer(file.read_bytes(), np.uint8, COUNT * 784, 16)
    return torch.from_numpy(pixels.reshape(-1, 1, 28, 28).copy())


@pytest.mark.parametrize("name", MNIST_C.corruptions)
def test_as_far_from_clean_as_the_published_one(data_root, digits, name):
    file = data_root / "mnist_c" / name / "test_images.npy"
    if not file.exists():
        pytest.skip("MNIST-C is not there")
    theirs = torch.from_numpy(np.load(file, mmap_mode="r")[:COUNT].copy()).permute(0, 3, 1, 2)
    ours = corrupt(digits, name, 1, "mnist-c")
    if name in FIXED:
        assert (ours.int() - theirs.int()).abs().max() <= 1
        return
    for measure in (lambda x: x.float(), lambda x: (x.float() - digits.float()).abs()):
        us, them = (measure(x).mean(dim=(1, 2, 3)) for x in (ours, theirs))
        error = ((us.var() + them.var()) / COUNT).sqrt()
        # Two samples of one distribution differ by more than four errors once in 16,000 times.
        assert abs(us.mean() - them.mean()) < 4 * error
