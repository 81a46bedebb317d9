"""`daedl train`, `evaluate` and `predict` on folders and .npz files, and their error messages."""

import _thread
import csv
import json
import os
import shlex
import shutil
import signal
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

import daedl
from daedl import storage
from daedl.cli import app
from daedl.cli.images import read_known
from daedl.data import read_folder, read_images
from daedl.networks import MLP, ConvNet
from daedl.spectral import DEFAULT
from daedl.training.checkpoint import Checkpoint

COLOURS = {"cat": (220, 40, 40), "dog": (40, 220, 40), "owl": (40, 40, 220)}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def error_line(*arguments: object) -> str:
    """Returns the one line on stderr of a command that fails."""
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return path


def draw(folder: Path, number: int = 12, grey: bool = False, seed: int = 0) -> Path:
    """Writes `number` noisy 8x8 images of one colour per class."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        for i in range(number):
            pixels = np.array(colour) + rng.normal(0, 25, (8, 8, 3))
            save(folder / name / f"{i}.png", pixels[..., 0] if grey else pixels)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders train, test and other, with flat and nested images, and trained models."""
    folder = tmp_path_factory.mktemp("world")
    draw(folder / "train")
    draw(folder / "test", 4, seed=1)
    rng = np.random.default_rng(2)
    for i in range(5):
        save(folder / "other" / f"{i}.png", rng.integers(0, 256, (9, 7, 3)))
    save(folder / "other" / "deeper" / "grey.jpg", rng.integers(0, 256, (20, 20)))
    for method in ("daedl", "softmax"):
        common = small(folder / "train", folder / f"{method}.daedl", "--method", method)
        result = call(*common, "--epochs", 8, "--batch-size", 8, "--learning-rate", 0.003)
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def model(world: Path) -> Path:
    return world / "daedl.daedl"


def small(data: object, out: Path, *more: object) -> tuple[object, ...]:
    return "train", "--data", data, "--out", out, "--size", 8, "--epochs", 1, *more


class TestTraining:
    def test_train(self, tmp_path: Path) -> None:
        out = tmp_path / "a model.daedl"
        result = call(*small(draw(tmp_path / "pets"), out, "--augment", "flip, rotate"))
        assert result.exit_code == 0, result.output
        assert "29 training images, 7 held out, 8x8 pixels, colour" in result.stdout
        assert "3 classes: cat, dog, owl\ndaedl, ConvNet" in result.stdout
        assert "accuracy on held-out images" in result.stdout
        assert "density effect on 7 held-out samples" in result.stdout
        assert f"daedl predict '{out}' IMAGE.png" in result.stdout
        files = sorted(path.name for path in tmp_path.iterdir())
        assert files == ["a model.daedl", "a model.toml", "pets"]
        loaded = daedl.Classifier.load(out)
        assert loaded.class_names == ["cat", "dog", "owl"]
        assert loaded.network.input_shape == (3, 8, 8)

    def test_default_model_file(
        self, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        arguments = "train", "--data", world / "train", "--size", 8, "--epochs", 1
        result = call(*arguments)
        assert result.exit_code == 0, result.output
        assert "daedl predict model.daedl IMAGE.png" in result.stdout
        files = sorted(path.name for path in tmp_path.iterdir())
        assert files == ["model.daedl", "model.toml"]
        assert call("evaluate", "model.daedl", "--id", world / "test").exit_code == 0
        assert "model.daedl already exists" in error_line(*arguments)

    def test_equal_seeds_give_equal_files(self, world: Path, tmp_path: Path) -> None:
        files = [tmp_path / f"{i}.daedl" for i in range(3)]
        for file, seed in zip(files, (5, 5, 6), strict=True):
            arguments = small(world / "train", file, "--seed", seed, "--augment", "crop")
            assert call(*arguments).exit_code == 0
        first, again, other = (file.read_bytes() for file in files)
        assert first == again != other

    @pytest.mark.parametrize(
        ("options", "expected"),
        [([], "grey"), (["--grey"], "grey"), (["--colour"], "colour")],
        ids=str,
    )
    def test_grey_images_stay_grey_by_default(
        self, tmp_path: Path, options: list[str], expected: str
    ) -> None:
        data = draw(tmp_path / "images", 4, grey=True)
        arguments = *small(data, tmp_path / "m.daedl", *options), "--learning-rate", -1
        assert f"pixels, {expected};" in call(*arguments).stdout

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ([], "32x32 pixels, colour; 3 classes: cat, dog, owl\ndaedl, WhitenNet"),
            (["--size", "33", "--network", "resnet18", "--method", "softmax"], "softmax, ResNet18"),
            (["--network", "VGG16"], "daedl, VGG16"),
        ],
        ids=["folder", "large", "by name"],
    )
    def test_network_and_size(
        self, world: Path, tmp_path: Path, options: list[str], expected: str
    ) -> None:
        """The description is printed before training, which an invalid learning rate prevents."""
        arguments = "--data", world / "train", "--out", tmp_path / "m.daedl", *options
        assert expected in call("train", *arguments, "--learning-rate", -1).stdout

    def test_settings_reach_the_method(self, world: Path, tmp_path: Path) -> None:
        out = tmp_path / "m.daedl"
        settings = "--set", "leave_one_out=True", "--set", "covariance=tied", "--set", "kl_weight=1"
        settings += "--set", "normalize_features=false"
        assert (
            call(*small(world / "train", out, *settings, "--set", "spectral=none")).exit_code == 0
        )
        method = daedl.Classifier.load(out).method
        assert (method.leave_one_out, method.covariance) == (True, "tied")
        assert method.normalize_features is False
        assert (method.kl_weight, method.spectral) == (1, None)

    @pytest.mark.parametrize(
        ("method", "settings"),
        [
            ("natpn", []),
            ("temperature", []),
            ("ensemble", ["member=daedl", "size=2"]),
        ],
    )
    def test_methods_train_evaluate_and_predict(
        self, world: Path, tmp_path: Path, method: str, settings: list[str]
    ) -> None:
        """With several phases, with a fit to validation data, and with several networks."""
        out = tmp_path / "model.daedl"
        typed = [part for each in settings for part in ("--set", each)]
        trained = call(*small(world / "train", out), "--method", method, "--epochs", 1, *typed)
        assert trained.exit_code == 0, trained.output
        assert f"{method}, ConvNet" in trained.output
        for command in (
            ("evaluate", out, "--id", world / "test", "--ood", world / "other"),
            ("predict", out, world / "other", "--format", "json"),
        ):
            result = call(*command)
            assert result.exit_code == 0, result.output
        assert daedl.Classifier.load(out).method.name == method

    def test_suggested_settings_are_valid(self, world: Path, tmp_path: Path) -> None:
        out = tmp_path / "m.daedl"
        message = error_line(*small(world / "train", out, "--set", "spectral=true"))
        value = message.partition("such as ")[2].strip()
        for typed, expected in (
            (value, DEFAULT),
            ('{"norm": "operator"}', daedl.SpectralNorm(norm="operator")),
        ):
            result = call(*small(world / "train", out, "--set", f"spectral={typed}", "--force"))
            assert result.exit_code == 0, result.output
            assert daedl.Classifier.load(out).method.spectral == expected

    def test_saturated_density_is_reported_with_advice(self, tmp_path: Path) -> None:
        """With few samples and many features, held-out images fall below the range of the paper."""
        data = draw(tmp_path / "pets", 40)
        more = "--validation", 0.5, "--batch-size", 4, "--size", 16, "--network", "convnet"
        paper = "covariance=full", "normalizer=minmax", "leave_one_out=false"
        typed = [part for each in paper for part in ("--set", each)]
        result = call(*small(data, tmp_path / "m.daedl", *more, *typed))
        assert result.exit_code == 0, result.output
        assert "warning: the density is saturated" in result.stdout
        (advice,) = [line for line in result.stdout.splitlines() if "daedl refit" in line]
        command = shlex.split(advice.replace("HELD_OUT", str(data)))[1:]
        assert call(*command).exit_code == 0
        assert daedl.Classifier.load(tmp_path / "m.daedl").method.shrinkage == 0.5

    def test_folders_larger_than_memory_and_skipped_files_give_the_same_model(
        self, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data, plain, lazy = tmp_path / "pets", tmp_path / "a.daedl", tmp_path / "b.daedl"
        shutil.copytree(world / "train", data)
        options = "--augment", "flip,crop"
        assert call(*small(data, plain, *options)).exit_code == 0
        for name in ("cat/x.png", "dog/y.jpg"):
            (data / name).write_text("no image")
        monkeypatch.setenv("DAEDL_MEMORY", "0")
        message = error_line(*small(data, lazy, *options))
        assert "cat/x.png" in message
        assert "dog/y.jpg" in message
        result = call(*small(data, lazy, *options, "--skip-broken"))
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith("Warning: skipped: 2 images")
        (tensors, described), (others, other) = map(storage.load, (lazy, plain))
        assert all(torch.equal(each, others[name]) for name, each in tensors.items())
        # Digests of data are those of pixels, or of files that are read when they are needed.
        assert described["trained_on"].pop("digest") != other["trained_on"].pop("digest")
        assert described == other
        held_out = "--data", data, "--skip-broken", "--reject", 0.2, "--out", tmp_path / "c.daedl"
        result = call("calibrate", world / "softmax.daedl", *held_out)
        assert result.exit_code == 0, result.output
        known = "evaluate", lazy, "--id", data, "--ood", data
        assert "2 images" in error_line(*known)
        assert call(*known, "--skip-broken").exit_code == 0

    def test_warning_of_a_class_with_one_image(self, tmp_path: Path) -> None:
        data = draw(tmp_path / "pets", 4)
        save(data / "eel" / "1.png", np.zeros((8, 8, 3)))
        result = call(*small(data, tmp_path / "m.daedl"))
        assert result.exit_code == 0, result.output
        assert "only one training sample of eel" in result.stderr

    def test_arrays_keep_size_and_class_names(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        images, labels = rng.integers(0, 256, (20, 9, 12), dtype=np.uint8), np.arange(20) % 2
        np.savez(tmp_path / "named.npz", images=images, labels=labels, class_names=["no", "yes"])
        np.savez(tmp_path / "plain.npz", images=images, labels=labels)
        for name, expected in (("named", ["no", "yes"]), ("plain", ["0", "1"])):
            out = tmp_path / f"{name}.daedl"
            arguments = "--data", tmp_path / f"{name}.npz", "--out", out, "--epochs", 1
            assert call("train", *arguments).exit_code == 0
            loaded = daedl.Classifier.load(out)
            assert loaded.class_names == expected
            assert loaded.network.input_shape == (1, 12, 12)

    def test_warnings_are_reported_before_errors(self, tmp_path: Path) -> None:
        save(tmp_path / "data" / "cat" / "1.png", np.zeros((8, 8)))
        (tmp_path / "data" / "cat" / "notes.txt").write_text("")
        (tmp_path / "data" / "dog").mkdir()
        (tmp_path / "data" / "dog" / "1.png").write_text("no image")
        result = call("train", "--data", tmp_path / "data", "--out", tmp_path / "m.daedl")
        assert result.exit_code == 1
        assert "Warning: 1 files in" in result.stderr
        assert "Error: " in result.stderr


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Enables Ctrl-C, which shells disable for background processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestInterruption:
    @pytest.mark.usefixtures("ctrl_c")
    def test_resumed_training_writes_the_same_file(self, world: Path, tmp_path: Path) -> None:
        out, checkpoint = tmp_path / "m.daedl", tmp_path / "m.daedl.ckpt"

        def training(out: Path, epochs: int, *more: object) -> tuple[object, ...]:
            endless = "--patience", 10**6, "--epochs", epochs
            return *small(world / "train", out, "--augment", "flip"), *endless, *more

        threading.Thread(target=interrupt_after, args=(checkpoint,), daemon=True).start()
        stopped = call(*training(out, 10**6))
        assert stopped.exit_code == 130
        assert "--resume" in stopped.stderr
        assert not out.exists()
        assert "--resume" in error_line(*training(out, 5))

        epochs = len(Checkpoint.load(checkpoint).epochs) + 2
        assert call(*training(out, epochs, "--resume")).exit_code == 0
        assert not checkpoint.exists()
        straight = tmp_path / "straight.daedl"
        assert call(*training(straight, epochs)).exit_code == 0
        assert out.read_bytes() == straight.read_bytes()

    def test_force_discards_the_checkpoint(self, world: Path, tmp_path: Path) -> None:
        out, checkpoint = tmp_path / "m.daedl", tmp_path / "m.daedl.ckpt"
        checkpoint.write_text("damaged")
        result = call(*small(world / "train", out, "--resume"))
        assert result.exit_code == 1
        assert "not a training checkpoint" in result.stderr
        assert call(*small(world / "train", out, "--force")).exit_code == 0
        assert not checkpoint.exists()


def interrupt_after(file: Path) -> None:
    """Simulates Ctrl-C once `file` exists."""
    while not file.exists():
        time.sleep(0.01)
    _thread.interrupt_main()


class TestResume:
    """Resume from the checkpoint of a training whose post-hoc fit failed."""

    @pytest.fixture
    def failed(self, world: Path, tmp_path: Path) -> Path:
        out = tmp_path / "m.daedl"
        assert "k is 50" in error_line(*small(world / "train", out, "--method", "knn"))
        return out

    def test_other_post_hoc_settings_are_valid(self, world: Path, failed: Path) -> None:
        again = small(world / "train", failed, "--method", "knn", "--set", "k=3", "--resume")
        result = call(*again)
        assert result.exit_code == 0, result.output
        assert daedl.Classifier.load(failed).fitted.k == 3

    def test_other_data_are_rejected(self, failed: Path, tmp_path: Path) -> None:
        other = draw(tmp_path / "others", seed=5)
        again = small(other, failed, "--method", "knn", "--set", "k=3", "--resume")
        assert "another run (data" in error_line(*again)

    def test_another_augmentation_is_rejected(self, world: Path, failed: Path) -> None:
        again = small(world / "train", failed, "--method", "knn", "--augment", "flip", "--resume")
        assert "another run (augmentation" in error_line(*again)


class TestTrainingErrors:
    @pytest.mark.parametrize(
        ("labels", "text"),
        [
            ([1, 2, 3, 4], "labels of {} are 1, 2, 3, 4"),
            ([0, 10**9, 2, 3], "labels of {} are 0, 2, 3, 1000000000"),
        ],
    )
    def test_labels_with_gaps(self, tmp_path: Path, labels: list[int], text: str) -> None:
        path = tmp_path / "data.npz"
        images = np.zeros((40, 8, 8), np.uint8)
        np.savez(path, images=images, labels=np.tile(labels, 10))
        assert text.format(path) in error_line(*small(path, tmp_path / "m.daedl"))

    def test_existing_models_are_overwritten_only_with_force(
        self, world: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "m.daedl"
        out.write_text("content")
        assert "--force" in error_line(*small(world / "train", out))
        assert out.read_text() == "content"
        assert call(*small(world / "train", out, "--force")).exit_code == 0
        assert daedl.Classifier.load(out).class_names == ["cat", "dog", "owl"]

    @pytest.mark.parametrize("place", ["", "missing/m.daedl", "file/m.daedl"])
    def test_output_is_checked_first(self, tmp_path: Path, place: str) -> None:
        (tmp_path / "file").write_text("")
        message = error_line("train", "--data", "no such data", "--out", tmp_path / place)
        assert "--out" in message

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (["--method", "deadl"], "did you mean 'daedl'"),
            (["--network", "covnet"], "did you mean 'convnet'"),
            (["--network", "mlp"], "convnet"),
            (["--augment", "flop"], "did you mean 'flip'"),
            (["--validation", "0"], "--validation is 0"),
            (["--validation", "1.5"], "--validation is 1.5"),
            (["--validation", "0.99"], "36 images"),
            (["--validation", "0.95"], "34 of 36"),
            (["--size", "4"], "at least 8"),
            (["--learning-rate", "-1"], "learning_rate is -1"),
            (["--learning-rate", "0"], "learning_rate is 0"),
            (["--learning-rate", "nan"], "learning_rate is nan"),
            (["--learning-rate", "inf"], "learning_rate is inf"),
            (["--seed", str(2**32)], "--seed"),
            (["--set", "leave_one_out"], "NAME=VALUE"),
            (["--set", "leave_one_uot=true"], "did you mean 'leave_one_out'"),
            (["--set", "leave_one_out=no"], "such as true"),
            (["--set", "kl_weight=true"], "such as 0.05"),
            (["--set", "covariance=round"], "round"),
            (["--set", "spectral=true"], 'such as "auto"'),
            (["--set", "spectral=true", "--method", "edl"], "such as null"),
            (["--set", "spectral=5"], "spectral is 5"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_invalid_options(
        self, world: Path, tmp_path: Path, options: list[str], expected: str
    ) -> None:
        assert expected in error_line(*small(world / "train", tmp_path / "m.daedl"), *options)
        assert not list(tmp_path.iterdir())

    def test_invalid_data(self, tmp_path: Path) -> None:
        def message(data: object) -> str:
            return error_line(*small(data, tmp_path / "m.daedl"))

        assert "doesn't exist" in message(tmp_path / "missing")
        assert "no file at" in message(tmp_path / "missing.npz")
        (tmp_path / "pets").mkdir()
        assert "has no subfolder" in message(tmp_path / "pets")
        picture = save(tmp_path / "pets" / "cat" / "1.png", np.zeros((8, 8, 3)))
        assert "is a file" in message(picture)
        assert "one class" in message(tmp_path / "pets")
        (tmp_path / "pets" / "dog").mkdir()
        assert "no image in" in message(tmp_path / "pets")
        (tmp_path / "pets" / "dog" / "1.png").write_text("no image")
        assert "dog/1.png can't be read" in message(tmp_path / "pets")

    def test_other_files_are_ignored_with_a_warning(self, tmp_path: Path) -> None:
        data = draw(tmp_path / "pets", 3)
        (data / "cat" / "notes.txt").write_text("")
        result = call(*small(data, tmp_path / "m.daedl"))
        assert result.exit_code == 0
        assert result.stderr.startswith("Warning: 1 files in")


class TestEvaluation:
    def test_table(self, world: Path, model: Path) -> None:
        arguments = "--id", world / "test", "--ood", world / "other", "--ood", world / "train"
        result = call("evaluate", model, *arguments)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        for expected in (
            "test (12 images)",
            "other (6 images)",
            "train (36 images)",
            "accuracy ↑",
            "Brier",
            "NLL",
            "ECE",
            "misclassification AUPR ↑",
            "AURC",
            "AUROC ↑",
            "FPR95 ↓",
            "aleatoric",
            "epistemic",
            "density",
        ):
            assert expected in result.stdout
        softmax = call("evaluate", world / "softmax.daedl", "--id", world / "test")
        assert "epistemic" not in softmax.stdout

    def test_json_and_csv_contain_the_same_values(self, world: Path, model: Path) -> None:
        arguments = "evaluate", model, "--id", world / "test", "--ood", world / "other"
        records = json.loads(call(*arguments, "--format", "json").stdout)
        lines = list(csv.DictReader(call(*arguments, "--format", "csv").stdout.splitlines()))
        assert [{k: str(v) for k, v in each.items()} for each in records] == lines
        # Accuracy, Brier, NLL, ECE; AUPR and AURC of three scores; AUPR, AUROC, FPR95 of three.
        assert len(records) == 4 + 2 * 3 + 3 * 3
        assert records[0] == {
            "data": str(world / "test"),
            "images": 12,
            "task": "classification",
            "score": "labels",
            "metric": "accuracy",
            "value": expected_accuracy(model, world / "test"),
        }

    def test_undefined_metrics(self, world: Path, model: Path, tmp_path: Path) -> None:
        """Without correct predictions the AUPR of misclassification is undefined."""
        for name, wrong in zip(COLOURS, ("dog", "owl", "cat"), strict=True):
            save(tmp_path / "all wrong" / wrong / "1.png", np.full((8, 8, 3), COLOURS[name]))
        arguments = "evaluate", model, "--id", tmp_path / "all wrong"
        assert expected_accuracy(model, tmp_path / "all wrong") == 0
        line = next(x for x in call(*arguments).stdout.splitlines() if "misclassification" in x)
        assert line.split()[-3:] == ["–"] * 3
        records = json.loads(call(*arguments, "--format", "json").stdout)
        assert [r["value"] for r in records if r["metric"] == "aupr"] == [None] * 3
        lines = csv.DictReader(call(*arguments, "--format", "csv").stdout.splitlines())
        assert [r["value"] for r in lines if r["metric"] == "aupr"] == [""] * 3

    def test_classes_are_matched_by_name(self, world: Path, model: Path, tmp_path: Path) -> None:
        read = read_folder(world / "test", size=8)
        images = read.images.numpy()
        arguments = {"images": images, "labels": 2 - read.labels.numpy()}
        np.savez(tmp_path / "a.npz", **arguments, class_names=["owl", "dog", "cat"])
        np.savez(tmp_path / "b.npz", images=images, labels=read.labels.numpy())
        folder = json.loads(call("evaluate", model, "--id", world / "test", "--format=json").stdout)
        for name in ("a.npz", "b.npz"):
            result = call("evaluate", model, "--id", tmp_path / name, "--format=json")
            found = [record["value"] for record in json.loads(result.stdout)]
            assert found == [record["value"] for record in folder]

    def test_folders_named_by_numbers_match_the_labels_of_arrays(self, tmp_path: Path) -> None:
        """Sorted as text, 10 is before 2."""
        model = daedl.Classifier(
            ConvNet(1, 11, image_size=8, channels=2),
            "softmax",
            class_names=sorted(map(str, range(11))),
        )
        images = np.zeros((11, 8, 8), np.uint8)
        np.savez(tmp_path / "digits.npz", images=images, labels=np.arange(11))
        found = read_known(str(tmp_path / "digits.npz"), model)
        assert [model.class_names[label] for label in found.labels] == list(map(str, range(11)))

    def test_decomposed_class_names_match(self, tmp_path: Path) -> None:
        """macOS decomposes accented letters in file names."""
        names = ["grün", "röd"]
        model = daedl.Classifier(
            ConvNet(3, 2, image_size=8, channels=2), "softmax", class_names=names
        )
        for number, name in enumerate(names):
            decomposed = unicodedata.normalize("NFD", name)
            assert decomposed != name
            save(tmp_path / decomposed / "1.png", np.full((8, 8, 3), 100 * number))
        found = read_known(str(tmp_path), model)
        assert (found.labels.tolist(), found.class_names) == ([0, 1], tuple(names))

    @pytest.mark.parametrize("names", [["dog", "owl"], ["owl"]], ids=" ".join)
    def test_classes_may_be_missing(
        self, world: Path, model: Path, tmp_path: Path, names: list[str]
    ) -> None:
        whole = read_folder(world / "test", size=8)
        labels = daedl.Classifier.load(model).predict(whole.images / 255).labels
        of_these = torch.tensor([list(COLOURS)[label] in names for label in whole.labels])
        expected = float((labels == whole.labels)[of_these].double().mean())
        for name in names:
            shutil.copytree(world / "test" / name, tmp_path / "some" / name)
        some = read_folder(tmp_path / "some", size=8)
        arrays = {"images": some.images.numpy(), "labels": some.labels.numpy()}
        np.savez(tmp_path / "some.npz", **arrays, class_names=names)
        for data in ("some", "some.npz"):
            result = call("evaluate", model, "--id", tmp_path / data, "--format", "json")
            assert result.exit_code == 0, result.output
            assert json.loads(result.stdout)[0]["images"] == 4 * len(names)
            assert json.loads(result.stdout)[0]["value"] == expected > 0.5

    def test_unknown_classes_are_named(self, world: Path, model: Path, tmp_path: Path) -> None:
        data = draw(tmp_path / "pets", 1)
        (data / "owl").rename(data / "eel")
        message = error_line("evaluate", model, "--id", data)
        assert "(eel)" in message
        read = read_folder(data, size=8)
        arrays = {"images": read.images.numpy(), "labels": read.labels.numpy()}
        np.savez(tmp_path / "a.npz", **arrays, class_names=["cat", "dog", "eel"])
        message = error_line("evaluate", model, "--id", tmp_path / "a.npz")
        assert "(eel)" in message
        np.savez(tmp_path / "b.npz", images=arrays["images"], labels=arrays["labels"] + 1)
        message = error_line("evaluate", model, "--id", tmp_path / "b.npz")
        assert "from 1 to 3" in message

    def test_missing_data(self, world: Path, model: Path, tmp_path: Path) -> None:
        known = "evaluate", model, "--id", world / "test"
        assert "doesn't exist" in error_line(*known, "--ood", tmp_path / "missing")
        (tmp_path / "empty").mkdir()
        assert "no image in" in error_line(*known, "--ood", tmp_path / "empty")
        assert "--out" in error_line(*known, "--out", tmp_path)

    def test_invalid_models(self, world: Path, tmp_path: Path) -> None:
        known = "--id", world / "test"
        assert "no model file" in error_line("evaluate", tmp_path / "missing.daedl", *known)
        other = world / "test" / "cat" / "0.png"
        assert "not a model file" in error_line("evaluate", other, *known)
        daedl.Classifier(MLP(4, 3), "softmax").save(tmp_path / "vectors.daedl")
        message = error_line("evaluate", tmp_path / "vectors.daedl", *known)
        assert "preprocess=None" in message
        daedl.Classifier(ConvNet(2, 3, 8), "softmax").save(tmp_path / "two.daedl")
        message = error_line("evaluate", tmp_path / "two.daedl", *known)
        assert "preprocess=None" in message
        daedl.Classifier(ConvNet(3, 3, 8), "daedl", class_names=list(COLOURS)).save(
            tmp_path / "unfitted.daedl"
        )
        assert "not fitted" in error_line("evaluate", tmp_path / "unfitted.daedl", *known)


def expected_accuracy(model: Path, folder: Path) -> float:
    read = read_folder(folder, size=8)
    labels = daedl.Classifier.load(model).predict(read.images / 255).labels
    return float((labels == read.labels).double().mean())


class TestPrediction:
    def test_the_model_is_not_overwritten(self, world: Path, model: Path) -> None:
        held = model.read_bytes()
        for command in (
            ("predict", model, world / "other"),
            ("evaluate", model, "--id", world / "test"),
        ):
            assert "is the model itself" in error_line(*command, "--out", model)
        assert model.read_bytes() == held

    def test_json_contains_the_prediction(self, world: Path, model: Path) -> None:
        files = [world / "test" / "dog" / "1.png", world / "other" / "deeper" / "grey.jpg"]
        result = call("predict", model, *files, "--format", "json")
        assert result.exit_code == 0, result.output
        records = json.loads(result.stdout)
        assert result.stderr == ""
        images = read_images(files, size=8)
        expected = daedl.Classifier.load(model).predict(images / 255)
        names = list(COLOURS)
        for i, record in enumerate(records):
            assert record == {
                "file": str(files[i]),
                "label": int(expected.labels[i]),
                "class_name": names[expected.labels[i]],
                "probability": float(expected.probs[i].max()),
                "aleatoric": float(expected.aleatoric[i]),
                "epistemic": float(expected.epistemic[i]),
                "alpha0": pytest.approx(float(expected.alpha0[i])),
                "density_score": float(expected.density_score[i]),
                "log_density": float(expected.log_density[i]),
                "probs": dict(zip(names, expected.probs[i].tolist(), strict=True)),
            }

    def test_preprocessing_of_a_model_trained_in_python(self, world: Path, tmp_path: Path) -> None:
        """The file contains mean and standard deviation, so that command and Python predict the same."""
        train = read_folder(world / "train", size=8)
        mean, std = train.mean_and_std()
        torch.manual_seed(0)
        model = daedl.Classifier(
            ConvNet(3, 3, 8, channels=8),
            "softmax",
            train.class_names,
            daedl.Preprocess(3, 8, mean=mean, std=std),
        )
        daedl.fit(model, train, max_epochs=10, batch_size=16, progress=False)
        model.save(tmp_path / "m.daedl")
        expected = model.predict(read_folder(world / "test", size=8))
        result = call("predict", tmp_path / "m.daedl", world / "test", "--format", "json")
        records = json.loads(result.stdout)
        assert [record["label"] for record in records] == expected.labels.tolist()
        found = torch.tensor([list(record["probs"].values()) for record in records])
        torch.testing.assert_close(found, expected.probs)
        right = [Path(record["file"]).parent.name == record["class_name"] for record in records]
        assert np.mean(right) > 0.9

    def test_in_distribution_images_are_classified_correctly(
        self, world: Path, model: Path
    ) -> None:
        result = call("predict", model, world / "test", "--format", "json")
        records = json.loads(result.stdout)
        right = [Path(record["file"]).parent.name == record["class_name"] for record in records]
        assert np.mean(right) > 0.9

    def test_folders_are_expanded_and_names_are_not_truncated(
        self, world: Path, tmp_path: Path
    ) -> None:
        name = "[bold]" + "a long name " * 12 + ".png"
        save(tmp_path / "deep" / "er" / name, np.zeros((8, 8)))
        save(tmp_path / "deep" / "2.png", np.zeros((8, 8, 3)))
        (tmp_path / "deep" / ".hidden.png").write_text("")
        save(tmp_path / "deep" / ".thumbs" / "small.png", np.zeros((8, 8)))
        arguments = "predict", world / "softmax.daedl", tmp_path / "deep", tmp_path / "deep/2.png"
        result = call(*arguments)
        assert result.exit_code == 0, result.output
        head, _, first, second = result.stdout.splitlines()
        assert head.split() == ["file", "class_name", "probability", "aleatoric"]
        assert "2.png" in first
        assert name in second
        lines = list(csv.DictReader(call(*arguments, "--format", "csv").stdout.splitlines()))
        assert [Path(line["file"]).name for line in lines] == ["2.png", name]
        assert list(lines[0]) == ["file", "label", "class_name", "probability", "aleatoric"]

    @pytest.mark.parametrize("skip", [False, True])
    def test_unreadable_images_are_reported_and_skipped(
        self, world: Path, model: Path, tmp_path: Path, skip: bool
    ) -> None:
        (tmp_path / "broken.png").write_text("no image")
        (tmp_path / "empty").mkdir()
        good, out = world / "test" / "dog" / "1.png", tmp_path / "out.json"
        files = tmp_path / "broken.png", good, tmp_path / "missing.png", tmp_path / "empty"
        options = "--format", "json", "--out", out, *(["--skip-broken"] if skip else [])
        result = call("predict", model, *files, *options)
        assert result.exit_code == (0 if skip else 1)
        assert result.stdout == ""
        assert [record["file"] for record in json.loads(out.read_text())] == [str(good)]
        error, summary = result.stderr.splitlines()
        assert error.startswith("Warning: " if skip else "Error: ")
        for expected in ("3 images", "broken.png", "missing.png", "empty"):
            assert expected in error
        assert summary == "Predicted 1 images; skipped 3 unreadable"

    def test_skipped_files_are_counted_once(self, world: Path, model: Path, tmp_path: Path) -> None:
        data = draw(tmp_path / "mixed", 1)
        for name in ("a.MP4", "b.mp4", "notes.txt", "README", ".DS_Store", ".thumbs/1.png"):
            (data / name).parent.mkdir(exist_ok=True)
            (data / name).write_text("no image")
        result = call("predict", model, data)
        assert result.exit_code == 0, result.output
        (summary,) = result.stderr.splitlines()
        assert "4 other files (2 .mp4, 1 without suffix, 1 .txt), 2 hidden" in summary
        assert "Predicted 3 images" in summary

    def test_names_that_are_not_utf_8(self, world: Path, model: Path, tmp_path: Path) -> None:
        name = os.fsdecode(b"caf\xe9.png")
        save(tmp_path / name, np.zeros((8, 8, 3)))
        (tmp_path / os.fsdecode(b"\xff.png")).write_text("no image")
        result = call("predict", model, tmp_path, "--format", "json", "--skip-broken")
        assert result.exit_code == 0, result.output
        (record,) = json.loads(result.stdout)
        assert record["file"] == str(tmp_path / name)
        assert call("predict", model, tmp_path, "--skip-broken").exit_code == 0

    def test_no_output_without_a_readable_image(self, model: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.csv"
        out.write_text("kept")
        result = call("predict", model, tmp_path / "missing.png", "--out", out, "--format", "csv")
        assert result.exit_code == 1
        assert "missing.png can't be read" in result.stderr
        assert out.read_text() == "kept"

    def test_missing_output_folder(self, world: Path, model: Path, tmp_path: Path) -> None:
        out = tmp_path / "missing" / "out.csv"
        assert "cannot write" in error_line("predict", model, world / "test", "--out", out)

    def test_classes_without_names_are_numbered(self, world: Path, tmp_path: Path) -> None:
        network = ConvNet(1, 3, 8, channels=4).double()
        daedl.Classifier(network, "edl").save(tmp_path / "m.daedl")
        result = call("predict", tmp_path / "m.daedl", world / "test", "--format", "json")
        assert result.exit_code == 0, result.output
        assert list(json.loads(result.stdout)[0]["probs"]) == ["0", "1", "2"]

    def test_damaged_models(self, world: Path, model: Path, tmp_path: Path) -> None:
        (tmp_path / "half.daedl").write_bytes(model.read_bytes()[:1000])
        assert "copy it again" in error_line("predict", tmp_path / "half.daedl", world / "test")
        tensors, description = storage.load(model)
        storage.save(tmp_path / "odd.daedl", tensors, {**description, "class_names": ["a"]})
        message = error_line("predict", tmp_path / "odd.daedl", world / "test")
        assert "1 class names" in message
