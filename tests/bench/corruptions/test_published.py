"""MNIST-C against files from the published generator, if they are available."""

import pytest

from daedl_bench import datasets
from daedl_bench.corruptions import FAMILIES, corrupt

COUNT = 400
# Deterministic corruptions.
FIXED = ("scale", "brightness", "stripe", "canny_edges")


@pytest.fixture(scope="module")
def digits(data_root):
    if not datasets.present("mnist", root=data_root):
        pytest.skip("MNIST is not available")
    return datasets.load("mnist", root=data_root).images[:COUNT]


@pytest.mark.parametrize("name", FAMILIES["mnist-c"].corruptions)
def test_mean_and_distance_from_clean_match_the_published_files(data_root, digits, name):
    if not datasets.present(f"mnist-c/{name}", root=data_root):
        pytest.skip("MNIST-C is not available")
    theirs = datasets.load(f"mnist-c/{name}", root=data_root).images[:COUNT]
    ours = corrupt(digits, name, 1, "mnist-c")
    if name in FIXED:
        assert (ours.int() - theirs.int()).abs().max() <= 1
        return
    for measure in (lambda x: x.float(), lambda x: (x.float() - digits.float()).abs()):
        us, them = (measure(x).mean(dim=(1, 2, 3)) for x in (ours, theirs))
        error = ((us.var() + them.var()) / COUNT).sqrt()
        # Two samples of one distribution differ by more than 4 standard errors in 1 of 16,000 cases.
        assert abs(us.mean() - them.mean()) < 4 * error
