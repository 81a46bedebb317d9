"""Properties of every corruption of both families."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from daedl.data import DataWarning
from daedl_bench import datasets
from daedl_bench.corruptions import FAMILIES, corrupt, weather

# Frost is drawn if the published photographs are not installed.
pytestmark = pytest.mark.filterwarnings("ignore:the published photographs::")

EVERY = [
    (family.name, name, severity)
    for family in FAMILIES.values()
    for name in family.corruptions
    for severity in range(1, family.severities + 1)
]


def distance(images, changed):
    return (changed.float() - images.float()).abs().mean().item()


def test_families_have_the_published_corruptions():
    """The names of the published files."""
    assert [len(family.corruptions) for family in FAMILIES.values()] == [15, 19]
    for family in FAMILIES.values():
        for each in family.corruptions.values():
            columns = [value for value in each.parameters.values() if isinstance(value, tuple)]
            assert {len(column) for column in columns} <= {family.severities}
            assert bool(columns) == (family.severities > 1)


@pytest.mark.parametrize(("family", "name", "severity"), EVERY)
def test_result_has_shape_and_type_and_does_not_depend_on_batches(pictures, family, name, severity):
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
def test_seed_and_index_change_random_corruptions_only(pictures, family, name):
    images = pictures[family][:1].repeat(8, 1, 1, 1)
    zero, one = (corrupt(images, name, 1, family, seed=seed) for seed in (0, 1))
    fixed = name in DETERMINISTIC[family]
    assert torch.equal(zero, one) == fixed
    assert (len(zero.unique(dim=0)) == 1) == fixed


def test_internal_batches_leave_no_trace(pictures):
    images = pictures["mnist-c"][:2].repeat(75, 1, 1, 1)
    whole = corrupt(images, "shot_noise", 1, "mnist-c")
    assert torch.equal(corrupt(images[120:], "shot_noise", 1, "mnist-c", first=120), whole[120:])
    assert len(corrupt(images[:0], "shot_noise", 1, "mnist-c")) == 0


@pytest.mark.parametrize(("family", "name", "severity"), EVERY)
def test_flat_images_issue_no_numeric_warning(family, name, severity):
    kind = FAMILIES[family]
    black = torch.zeros(2, kind.channels, kind.side, kind.side, dtype=torch.uint8)
    images = torch.cat([black, ~black])
    assert corrupt(images, name, severity, family).shape == images.shape


def check_order(images, name):
    """Higher severities are farther from `images`, except for those under `not_monotonic`."""
    drawn = name == "frost" and not weather._photographs()
    not_monotonic = () if drawn else FAMILIES["cifar10-c"].corruptions[name].not_monotonic
    far = [distance(images, corrupt(images, name, s, "cifar10-c")) for s in range(1, 6)]
    for severity in range(2, 6):
        ratio = far[severity - 1] / far[severity - 2]
        # Two severities with the same effect may differ by chance.
        assert ratio < 1.05 if severity in not_monotonic else ratio > 1, (severity, far)


@pytest.mark.parametrize("name", FAMILIES["cifar10-c"].corruptions)
def test_severity_increases_the_distance_from_clean_images(pictures, name):
    # Coverage by ice varies between images, so frost needs more draws.
    times = 8 if name == "frost" else 1
    check_order(pictures["cifar10-c"].repeat(times, 1, 1, 1), name)


@pytest.mark.parametrize("name", FAMILIES["cifar10-c"].corruptions)
def test_severity_increases_the_distance_from_cifar10(data_root, name):
    if not datasets.present("cifar10", root=data_root):
        pytest.skip("CIFAR-10 is not available")
    check_order(datasets.load("cifar10", root=data_root).images[:100], name)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """A package imagecorruptions with flat pictures in distinct colours, that fails on import."""
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError")
    colours = np.random.default_rng(0).integers(0, 256, (5, 3), dtype=np.uint8)
    for name, colour in zip(weather._PICTURES, colours, strict=True):
        picture = Image.fromarray(np.broadcast_to(colour, (200, 250, 3)).copy())
        picture.save(folder / name, **({"quality": 100} if name.endswith("jpg") else {}))
    monkeypatch.syspath_prepend(tmp_path)
    weather._photographs.cache_clear()
    yield colours
    weather._photographs.cache_clear()


def test_frost_adds_published_photographs_if_installed(photographs):
    images = torch.zeros(60, 3, 32, 32, dtype=torch.uint8)
    changed = corrupt(images, "frost", 5, "cifar10-c").int()
    expected = torch.from_numpy(0.45 * photographs).int()
    # JPEG rounds colours by a few levels.
    gaps = (changed[:, None, :, 0, 0] - expected[None]).abs().amax(dim=2)
    assert gaps.amin(dim=1).max() <= 3
    assert set(gaps.argmin(dim=1).tolist()) == set(range(5))


@pytest.mark.filterwarnings("default:the published photographs::")
def test_drawn_frost_issues_a_warning(photographs, tmp_path, pictures):
    (tmp_path / "imagecorruptions" / "frost" / weather._PICTURES[0]).unlink()
    with pytest.warns(DataWarning, match="pip install"):
        corrupt(pictures["cifar10-c"][:2], "frost", 1, "cifar10-c")


@pytest.mark.parametrize(
    ("name", "family", "text"),
    [
        ("motion_blurr", "mnist-c", "did you mean 'motion_blur'"),
        ("fog", "MNIST_C", "did you mean 'mnist-c'"),
        ("frost", "mnist-c", "unknown corruption of MNIST-C 'frost'"),
    ],
)
def test_unknown_names_are_rejected(pictures, name, family, text):
    with pytest.raises(ValueError, match=text):
        corrupt(pictures["mnist-c"], name, 1, family)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda x: x.numpy(), TypeError, "a ndarray; expected a torch.uint8 tensor"),
        (lambda x: x.float() / 255, TypeError, r"torch.float32; expected .*round"),
        (lambda x: x[:, 0], ValueError, r"\(48, 28, 28\);.*\(N, 1, 28, 28\).*unsqueeze\(1\)"),
        (lambda x: x.permute(0, 2, 3, 1), ValueError, r"permute\(0, 3, 1, 2\)"),
        (lambda x: x[..., :20], ValueError, r"\(48, 1, 28, 20\);.*resize"),
        (lambda x: x.expand(-1, 3, -1, -1), ValueError, r"defined for \(N, 1, 28, 28\)"),
    ],
)
def test_wrong_images_are_rejected(pictures, change, error, match):
    with pytest.raises(error, match=match):
        corrupt(change(pictures["mnist-c"]), "fog", 1, "mnist-c")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((2, "mnist-c"), "severity is 2; expected .* 1 to 1"),
        ((0, "cifar10-c"), "severity is 0; expected .* 1 to 5"),
        ((1, "mnist-c", -1), "seed is -1"),
        ((1, "mnist-c", 0, -1), "first is -1"),
    ],
)
def test_wrong_severities_and_seeds_are_rejected(pictures, arguments, text):
    with pytest.raises(ValueError, match=text):
        corrupt(pictures[arguments[1]], "fog", *arguments)
