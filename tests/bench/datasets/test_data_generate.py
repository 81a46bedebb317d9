"""Generated datasets: the published layout, atomic files, continuation after an interruption."""

import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from daedl.checks import DataWarning
from daedl.data import ImageSet
from daedl_bench.corruptions import FAMILIES, corrupt, weather
from daedl_bench.datasets import generate, load

NAMES = ["shot_noise", "stripe", "scale"]
LABELS = torch.tensor([3, 1, 4, 1])


pytestmark = pytest.mark.filterwarnings("ignore:the published photographs::")


@pytest.fixture
def digits(files):
    return ImageSet(torch.from_numpy(files.pixels[:4, None]), LABELS, "digits", "test")


def everything(folder):
    """Contents and times of all files below `folder`, except locks."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {
        str(each.relative_to(folder)): (each.read_bytes(), each.stat().st_mtime_ns)
        for each in files
    }


def test_mnist_c_has_the_published_layout(tmp_path, digits):
    home = generate(digits, tmp_path / "data", "mnist-c", NAMES, seed=3, progress=False)
    assert home == tmp_path / "data" / "mnist_c"
    assert set(everything(home)) == {"generated.json"} | {
        f"{name}/test_{part}.npy" for name in NAMES for part in ("images", "labels")
    }
    for name in NAMES:
        images = np.load(home / name / "test_images.npy")
        labels = np.load(home / name / "test_labels.npy")
        assert (images.dtype, images.shape) == (np.uint8, (4, 28, 28, 1))
        assert (labels.dtype, labels.tolist()) == (np.uint8, LABELS.tolist())
        ours = corrupt(digits.images, name, 1, "mnist-c", seed=3).permute(0, 2, 3, 1)
        assert np.array_equal(images, ours.numpy())
    record = json.loads((home / "generated.json").read_text())
    assert (record["seed"], record["names"]) == (3, sorted(NAMES))


def test_drawn_frost_is_not_loaded(tmp_path, monkeypatch):
    """Its figures would be mixed with those of the published photographs."""
    monkeypatch.setattr(weather, "_photographs", tuple)
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    clean = ImageSet(images, torch.tensor([7, 9]), "photos", "test")
    generate(clean, tmp_path, "cifar10-c", ["fog", "frost"], progress=False)
    generate(clean, tmp_path, "cifar10-c", ["contrast"], progress=False)
    with pytest.warns(DataWarning, match="generated"):
        assert load("cifar10-c/fog/1", root=tmp_path, download=False).made
    with pytest.raises(ValueError, match=r"frost\.npy was drawn.*imagecorruptions"):
        load("cifar10-c/frost/1", root=tmp_path, download=False)


def test_cifar10_c_has_the_published_layout(tmp_path):
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    clean = ImageSet(images, torch.tensor([7, 9]), "photos", "test")
    home = generate(clean, tmp_path, "cifar10-c", progress=False)
    assert home == tmp_path / "CIFAR-10-C"
    names = {"labels", *FAMILIES["cifar10-c"].corruptions}
    assert set(everything(home)) == {"generated.json"} | {f"{name}.npy" for name in names}
    assert np.load(home / "labels.npy").tolist() == [7, 9] * 5
    for name in FAMILIES["cifar10-c"].corruptions:
        levels = np.load(home / f"{name}.npy")
        assert (levels.dtype, levels.shape) == (np.uint8, (10, 32, 32, 3))
    fog = np.load(home / "fog.npy").reshape(5, 2, 32, 32, 3)
    for severity in (1, 5):
        ours = corrupt(images, "fog", severity, "cifar10-c").permute(0, 2, 3, 1)
        assert np.array_equal(fog[severity - 1], ours.numpy())


def test_interrupted_run_continues_where_it_stopped(tmp_path, digits):
    # A file in place of the second corruption's folder stops the run there.
    home = tmp_path / "mnist_c"
    home.mkdir()
    obstacle = home / "stripe"
    obstacle.write_text("")
    with pytest.raises(OSError, match=r"cannot write into the folder .*stripe.*choose another"):
        generate(digits, tmp_path, "mnist-c", NAMES, progress=False)
    first = everything(home / "shot_noise")
    assert set(first) == {"test_images.npy", "test_labels.npy"}
    assert not any(Path(name).name.startswith(".") for name in everything(home))
    assert not (home / "scale").exists()
    obstacle.unlink()
    generate(digits, tmp_path, "mnist-c", NAMES, progress=False)
    assert everything(home / "shot_noise") == first
    fresh = generate(digits, tmp_path / "fresh", "mnist-c", NAMES, progress=False)
    contents = {name: data for name, (data, _) in everything(fresh).items()}
    assert {name: data for name, (data, _) in everything(home).items()} == contents


def test_a_second_run_changes_nothing(tmp_path, digits):
    home = generate(digits, tmp_path, "mnist-c", NAMES, progress=False)
    before = everything(home)
    generate(digits, tmp_path, "mnist-c", NAMES, progress=False)
    assert everything(home) == before


def test_published_files_are_kept_and_not_recorded(tmp_path, digits):
    theirs = tmp_path / "mnist_c" / "stripe" / "test_images.npy"
    theirs.parent.mkdir(parents=True)
    np.save(theirs, np.zeros((4, 28, 28, 1), dtype=np.uint8))
    home = generate(digits, tmp_path, "mnist-c", NAMES, progress=False)
    assert np.load(theirs).max() == 0
    assert np.load(theirs.with_name("test_labels.npy")).tolist() == LABELS.tolist()
    assert "stripe" not in json.loads((home / "generated.json").read_text())["names"]


def test_other_seeds_and_images_are_rejected(tmp_path, digits):
    generate(digits, tmp_path, "mnist-c", NAMES[:1], progress=False)
    with pytest.raises(ValueError, match=r"'seed': 0.*expected .*'seed': 1.*choose another folder"):
        generate(digits, tmp_path, "mnist-c", NAMES, seed=1, progress=False)
    inverted = replace(digits, pixels=255 - digits.images)
    with pytest.raises(ValueError, match="the same images"):
        generate(inverted, tmp_path, "mnist-c", NAMES, progress=False)


def zip_it(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", b"")


def break_header(file):
    file.write_bytes(file.read_bytes().replace(b"}", b"("))


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (zip_it, "test_images.npy is damaged"),
        (break_header, "test_images.npy is damaged"),
        (lambda file: file.write_bytes(file.read_bytes()[:1000]), "test_images.npy is damaged"),
        (lambda file: file.write_bytes(b"not numbers"), "test_images.npy is damaged"),
        (lambda file: file.write_bytes(b""), "test_images.npy is damaged"),
        (lambda file: np.save(file, np.zeros((9, 28, 28, 1), dtype=np.uint8)), r"shape \(9, 28"),
        (lambda file: np.save(file, np.zeros((4, 28, 28, 1))), "holds float64"),
        (lambda file: np.save(file.with_name("test_labels.npy"), [0, 0, 0, 0]), "other labels"),
        (lambda file: (file.parents[1] / "generated.json").write_text("{"), "is damaged"),
    ],
)
def test_damaged_files_are_named_and_not_modified(tmp_path, digits, spoil, match):
    home = generate(digits, tmp_path, "mnist-c", NAMES[:1], progress=False)
    spoil(home / "shot_noise" / "test_images.npy")
    before = everything(home)
    with pytest.raises(ValueError, match=match) as caught:
        generate(digits, tmp_path, "mnist-c", NAMES, progress=False)
    assert str(home) in str(caught.value)
    assert everything(home) == before


def test_wrong_names_and_folders_are_rejected(tmp_path, digits):
    with pytest.raises(ValueError, match="did you mean 'stripe'"):
        generate(digits, tmp_path, "mnist-c", ["stripes"], progress=False)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write into the folder"):
        generate(digits, tmp_path / "file", "mnist-c", NAMES, progress=False)


def test_progress_is_shown(tmp_path, digits, capsys):
    generate(digits, tmp_path, "mnist-c", NAMES[:1])
    assert "MNIST-C shot_noise" in capsys.readouterr().out


def test_concurrent_runs_record_all_corruptions(tmp_path, digits):
    with ThreadPoolExecutor() as pool:
        parts = (["scale"], ["stripe"], ["fog"], ["rotate"])
        runs = [
            pool.submit(generate, digits, tmp_path, "mnist-c", names, progress=False)
            for names in parts
        ]
    record = json.loads((runs[0].result() / "generated.json").read_text())
    assert record["names"] == ["fog", "rotate", "scale", "stripe"]
