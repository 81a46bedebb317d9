"""Every corruption of both tables, put through the same questions."""

import numpy as np
import pytest
import torch

from daedl_bench.corruptions import CIFAR10_C, FAMILIES, corrupt

EVERY = [
    (family, name, severity)
    for family, kind in FAMILIES.items()
    for name, each in kind.corruptions.items()
    for severity in each.severities
]


def distance(images, changed):
    return (changed.float() - images.float()).abs().mean().item()


def test_the_tables_are_the_published_ones():
    assert [len(kind.corruptions) for kind in FAMILIES.values()] == [15, 19]
    assert {len(each.parameters) for each in FAMILIES["mnist-c"].corruptions.values()} == {1}
    assert {len(each.parameters) for each in CIFAR10_C.corruptions.values()} == {5}
    with pytest.raises(TypeError):
        FAMILIES["mnist-c"].corruptions["fog"] = None
    with pytest.raises(TypeError):
        CIFAR10_C.corruptions["fog"].parameters[0]["amount"] = 0


@pytest.mark.parametrize(("family", "name", "severity"), EVERY)
def test_shape_type_seed_and_batches(pictures, family, name, severity):
    images = pictures[family][:6]
    before = images.clone()
    whole = corrupt(images, name, severity, family)
    assert whole.dtype == torch.uint8
    assert whole.shape == images.shape
    assert torch.equal(images, before)
    assert 0.1 < distance(images, whole) < 200
    parts = [
        corrupt(images[first : first + size], name, severity, family, first=first)
        for first, size in ((0, 1), (1, 2), (3, 3))
    ]
    assert torch.equal(torch.cat(parts), whole)


DETERMINISTIC = {
    "mnist-c": {"scale", "brightness", "stripe", "canny_edges"},
    "cifar10-c": {
        "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression",
        "gaussian_blur", "saturate",
    },
}  # fmt: skip


@pytest.mark.parametrize(("family", "name"), [each[:2] for each in EVERY if each[2] == 1])
def test_seed_and_index_change_what_is_random_and_nothing_else(pictures, family, name):
    images = pictures[family][:1].repeat(8, 1, 1, 1)
    zero, one = (corrupt(images, name, 1, family, seed=seed) for seed in (0, 1))
    fixed = name in DETERMINISTIC[family]
    assert torch.equal(zero, one) == fixed
    assert (len(zero.unique(dim=0)) == 1) == fixed


def test_more_images_than_are_worked_on_at_once(pictures):
    images = pictures["mnist-c"][:2].repeat(75, 1, 1, 1)
    whole = corrupt(images, "shot_noise", 1, "mnist-c")
    assert torch.equal(corrupt(images[120:], "shot_noise", 1, "mnist-c", first=120), whole[120:])


def test_no_images_give_no_images(pictures):
    for family, kind in FAMILIES.items():
        for name in kind.corruptions:
            assert len(corrupt(pictures[family][:0], name, 1, family)) == 0


@pytest.mark.parametrize("level", [0, 255])
@pytest.mark.parametrize(("family", "name", "severity"), EVERY)
def test_flat_images_pass_without_a_warning(family, name, severity, level):
    kind = FAMILIES[family]
    images = torch.full((2, kind.channels, kind.side, kind.side), level, dtype=torch.uint8)
    assert corrupt(images, name, severity, family).shape == images.shape


def check_order(images, name):
    """Larger severities are farther from `images`, but for the ones that the table names."""
    each = CIFAR10_C.corruptions[name]
    far = [distance(images, corrupt(images, name, s, "cifar10-c")) for s in each.severities]
    for severity in each.severities[1:]:
        ratio = far[severity - 1] / far[severity - 2]
        # Two severities that are the same in effect may differ by chance.
        assert ratio < 1.05 if severity in each.no_farther else ratio > 1, (severity, far)


@pytest.mark.parametrize("name", CIFAR10_C.corruptions)
def test_severity_takes_images_farther_from_the_clean_ones(pictures, name):
    # Ice covers more of one image than of the next: more draws, for a mean that is not chance.
    times = 8 if name == "frost" else 1
    check_order(pictures["cifar10-c"].repeat(times, 1, 1, 1), name)


@pytest.mark.parametrize("name", CIFAR10_C.corruptions)
def test_severity_takes_cifar10_farther_from_the_clean_ones(data_root, name):
    file = data_root / "cifar-10-batches-py" / "test_batch"
    if not file.exists():
        pytest.skip("CIFAR-10 is not there")
    # The pixels lie in the pickle as they are, after a short head; no pickle is run.
    raw = file.read_bytes()
    start = (
        raw.index(b"data") + raw[raw.index(b"data") :].index((30720000).to_bytes(4, "little")) + 4
    )
    images = np.frombuffer(raw, np.uint8, 300 * 3072, start).reshape(-1, 3, 32, 32)
    check_order(torch.from_numpy(images.copy()), name)


def test_unknown_names_get_a_suggestion(pictures):
    images = pictures["mnist-c"]
    with pytest.raises(ValueError, match="did you mean 'motion_blur'"):
        corrupt(images, "motion_blurr", 1, "mnist-c")
    with pytest.raises(ValueError, match="did you mean 'mnist-c'"):
        corrupt(images, "fog", 1, "MNIST_C")
    with pytest.raises(ValueError, match="unknown corruption of MNIST-C 'frost'"):
        corrupt(images, "frost", 1, "mnist-c")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda x: x.numpy(), TypeError, r"a ndarray; expected a torch.Tensor.*as_tensor"),
        (lambda x: x.float() / 255, TypeError, r"torch.float32; expected torch.uint8.*round"),
        (lambda x: x[:, 0], ValueError, r"\(24, 28, 28\);.*\(N, 1, 28, 28\).*unsqueeze\(1\)"),
        (lambda x: x[0], ValueError, r"\(1, 28, 28\);.*unsqueeze"),
        (lambda x: x.permute(0, 2, 3, 1), ValueError, r"permute\(0, 3, 1, 2\)"),
        (lambda x: x[..., :20], ValueError, r"\(24, 1, 28, 20\);.*resize"),
        (lambda x: x.expand(-1, 3, -1, -1), ValueError, r"defined for \(N, 1, 28, 28\)"),
    ],
)
def test_wrong_images_are_refused(pictures, change, error, match):
    with pytest.raises(error, match=match):
        corrupt(change(pictures["mnist-c"]), "fog", 1, "mnist-c")


def test_wrong_severities_and_seeds_are_refused(pictures):
    with pytest.raises(ValueError, match="severity 2 of fog; MNIST-C has 1, the only one"):
        corrupt(pictures["mnist-c"], "fog", 2, "mnist-c")
    with pytest.raises(ValueError, match="severity 0 of fog; CIFAR-10-C has 1 to 5"):
        corrupt(pictures["cifar10-c"], "fog", 0, "cifar10-c")
    with pytest.raises(ValueError, match="seed is -1; expected 0 or more"):
        corrupt(pictures["mnist-c"], "fog", 1, "mnist-c", seed=-1)
