"""Folders larger than memory: files decoded when they are needed give the same results bit for bit."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import daedl
from daedl.data import DataWarning, Flip, ImageSet, read_folder, read_images
from daedl.data.files import Files, Readable, loader_options
from daedl.data.loaders import as_batches, in_order
from daedl.networks import Backbone, ConvNet

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight noisy images of each of three classes, of several sizes."""
    path, rng = tmp_path_factory.mktemp("pets"), np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (path / name).mkdir()
        for i in range(8):
            pixels = rng.integers(0, 100, (9 + i, 12, 3))
            pixels[..., label] += 100
            Image.fromarray(pixels.astype(np.uint8)).save(path / name / f"{i}.png")
    return path


@pytest.fixture(scope="module")
def loaded(folder: Path) -> ImageSet:
    return read_folder(folder, size=8)


@pytest.fixture(params=[0, 2], ids="{} workers".format)
def lazy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps no folder in memory, and decodes in this process or in two others."""
    monkeypatch.setenv("DAEDL_MEMORY", "0")
    monkeypatch.setenv("DAEDL_WORKERS", str(request.param))


@pytest.fixture
def both(folder: Path, loaded: ImageSet, lazy: None) -> tuple[ImageSet, ImageSet]:
    """The folder in memory, and as files."""
    files = read_folder(folder, size=8)
    assert isinstance(loaded.pixels, torch.Tensor)
    assert isinstance(files.pixels, Files)
    return loaded, files


def model(method: str = "daedl") -> daedl.Classifier:
    torch.manual_seed(0)
    return daedl.Classifier(ConvNet(3, 3, image_size=8, channels=4), method, CLASSES)


def equal(first: daedl.Classifier, second: daedl.Classifier) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_images_subsets_and_splits_are_equal(both):
    loaded, files = both
    assert files.shape == loaded.shape
    assert torch.equal(files.images, loaded.images)
    assert torch.equal(files.subset([7, 2, 2]).images, loaded.subset([7, 2, 2]).images)
    for first, second in zip(
        loaded.random_split(7, seed=1), files.random_split(7, seed=1), strict=True
    ):
        assert torch.equal(first.labels, second.labels)
        assert torch.equal(first.images, second.images)
    assert files.mean_and_std() == loaded.mean_and_std()
    assert files.is_grey() == loaded.is_grey() is False


def test_augmented_batches_are_equal_and_keep_the_random_state(both):
    loaded, files = (
        each.batches(5, shuffle=True, seed=3, augment=Flip(), drop_last=True) for each in both
    )
    before = torch.get_rng_state()
    for (images, labels), (other, targets) in zip(loaded, files, strict=True):
        assert torch.equal(images, other)
        assert torch.equal(labels, targets)
    assert torch.equal(torch.get_rng_state(), before)


def test_trained_classifiers_are_equal(both):
    models = []
    for images in both:
        classifier = model()
        daedl.fit(classifier, images, images, max_epochs=2, batch_size=5, progress=False)
        classifier.calibrate(images, daedl.MaxRejectionRate(0.2))
        models.append(classifier)
    first, second = models
    assert equal(first, second)
    assert first.thresholds == second.thresholds
    assert torch.equal(first.predict(both[0]).alpha0, second.predict(both[1]).alpha0)


def test_paths_of_folders_are_read_as_needed(folder, both):
    loaded, _ = both
    first, second = model("edl"), model("edl")
    daedl.fit(first, loaded, max_epochs=1, progress=False)
    daedl.fit(second, folder, max_epochs=1, progress=False)
    assert isinstance(second.batches(folder), DataLoader)
    assert equal(first, second)
    assert torch.equal(second.predict(folder).alpha0, first.predict(loaded).alpha0)


def test_processes_share_the_files(both):
    _, files = both
    shares = [in_order(as_batches(files, 5), rank, 2) for rank in (0, 1)]
    images = [torch.cat([batch for batch, _ in share]) for share in shares]
    assert torch.equal(images[0], files.images[::2])
    assert torch.equal(images[1], files.images[1::2])


def test_frozen_features_are_equal(folder, lazy, tmp_path, monkeypatch):
    def train(cache: Path | None) -> daedl.Classifier:
        torch.manual_seed(0)
        classifier = daedl.Classifier(Backbone("efficientnet-lite0", 3, 32), "edl", CLASSES)
        daedl.fit_frozen(classifier, folder, cache=cache, max_epochs=1, progress=False)
        return classifier

    files = train(tmp_path)
    cached = sorted(tmp_path.rglob("*.safetensors"))
    monkeypatch.delenv("DAEDL_MEMORY")
    assert equal(train(None), files)
    assert equal(train(tmp_path), files)
    assert sorted(tmp_path.rglob("*.safetensors")) == cached


def test_digest_changes_with_files_and_labels(both):
    _, files = both
    for images in both:
        whole = images.digest()
        assert images.subset(range(24)).digest() == whole
        assert images.subset(range(23)).digest() != whole
        assert replace(images, labels=2 - images.labels).digest() != whole
    before, path = files.digest(), files.pixels.pictures[0]
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert files.digest() != before


def test_all_broken_files_are_named(folder, lazy, tmp_path):
    classifier = model("softmax")
    paths = sorted(folder.rglob("*.png"))
    broken = [tmp_path / f"{i}.png" for i in range(12)]
    for path in broken:
        path.write_text("no image")
    with pytest.raises(ValueError, match="12 images") as caught:
        classifier.predict([*broken[:6], *paths, *broken[6:]], batch_size=4)
    assert all(str(path) in str(caught.value) for path in broken)


def test_a_warning_of_skipped_files_is_short(tmp_path):
    pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    readable = Readable(pixels, torch.tensor([0]), {f"{i}.png": "no image" for i in range(12)})
    with pytest.warns(DataWarning, match=r"12 images.*2 more"):
        readable.require_all(skip=True)
    with pytest.raises(ValueError, match=r"11\.png"):
        readable.require_all(skip=False)


def test_options_to_skip_files_are_named_where_there_are_any(folder, tmp_path):
    with pytest.raises(ValueError, match="check the path") as caught:
        model("softmax").predict(tmp_path / "gone.png")
    assert "skip-broken" not in str(caught.value)
    with pytest.raises(ValueError, match="check the path") as caught:
        read_images([tmp_path / "gone.png", *folder.rglob("*.png")], size=8)
    assert "skip-broken" not in str(caught.value)
    shutil.copytree(folder, tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "x.png").write_text("no image")
    with pytest.raises(ValueError, match="skip_broken=True"):
        read_folder(tmp_path / "pets", size=8)


def test_files_that_vanish_are_named(both):
    _, files = both
    gone = Path("gone.png")
    changed = ImageSet(
        Files((gone, *files.pixels.pictures[1:]), 3, (8, 8), "stretch"), files.labels, "x", "test"
    )
    with pytest.raises(ValueError, match=r"gone\.png can't be read \(No such file"):
        list(changed.batches())
    with pytest.raises(ValueError, match=r"gone\.png can't be read \(No such file"):
        model("edl").collect(changed)


@pytest.mark.parametrize("name", ["DAEDL_MEMORY", "DAEDL_WORKERS"])
def test_invalid_settings_are_rejected(folder, monkeypatch, name):
    monkeypatch.setenv(name, "much")
    with pytest.raises(ValueError, match=f"{name} is 'much'"):
        read_folder(folder)


def test_few_files_need_no_workers():
    assert loader_options(10)["num_workers"] == 0
    assert loader_options(10_000)["num_workers"] > 0 or sys.platform != "linux"


def test_skipped_files_keep_the_labels_of_the_others(folder, lazy, tmp_path):
    for name in CLASSES:
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "cat").unlink()
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_text("no image")
    (tmp_path / "cat" / "2.png").write_bytes((folder / "cat" / "2.png").read_bytes())
    with pytest.raises(ValueError, match=r"cat/1\.png"):
        read_folder(tmp_path, size=8)
    with pytest.warns(DataWarning, match=r"skipped.*cat/1\.png"):
        read = read_folder(tmp_path, size=8, skip_broken=True)
    assert read.labels.tolist() == [0, *[1] * 8, *[2] * 8]
    assert torch.equal(read.images, read_folder(folder, size=8).subset([2, *range(8, 24)]).images)
