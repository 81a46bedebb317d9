"""`python -m daedl_bench data` on a dozen images in the published formats."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from daedl.data import DataWarning
from daedl_bench import datasets as data
from daedl_bench.cli import app
from daedl_bench.corruptions import FAMILIES, corrupt
from daedl_bench.datasets.sources import sources

# Files of a dozen images don't have the published checksums.
pytestmark = pytest.mark.filterwarnings("ignore::daedl.data.DataWarning")

RANDOM = np.random.default_rng(0)
DIGITS = RANDOM.integers(0, 256, (12, 28, 28), dtype=np.uint8)
PHOTOS = RANDOM.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "120"})


def as_idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with the test sets of MNIST and CIFAR-10, a dozen images each."""
    batch = {"data": PHOTOS.reshape(12, -1), "labels": LABELS.tolist()}
    images, labels = sources()["mnist"].splits["test"]
    (batches,) = sources()["cifar10"].splits["test"]
    contents = {images: as_idx(DIGITS), labels: as_idx(LABELS), batches: pickle.dumps(batch, 4)}
    for name, content in contents.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "data"


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Contents and times of all files below `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in files}


def test_mnist_c_is_generated_in_the_data_root_and_can_be_loaded(root: Path) -> None:
    result = run("corrupt", "mnist-c", "--data", root, "--names", "fog, stripe", "--seed", 3)
    assert result.exit_code == 0
    assert f"MNIST-C is in {root / 'mnist_c'}" in result.output
    assert "MNIST-C stripe" in result.output  # the progress bar
    assert {each.name for each in (root / "mnist_c").iterdir() if each.is_dir()} == {
        "fog",
        "stripe",
    }
    clean = torch.from_numpy(DIGITS).unsqueeze(1)
    for name in ("fog", "stripe"):
        with pytest.warns(DataWarning, match="expected those of mnist-c"):
            made = data.load(f"mnist-c/{name}", root=root, download=False)
        assert made.made
        assert torch.equal(made.images, corrupt(clean, name, 1, "mnist-c", seed=3))
        assert made.labels.tolist() == LABELS.tolist()


def test_cifar10_c_has_five_severities(root: Path) -> None:
    assert run("corrupt", "cifar10-c", "--data", root, "--names", "contrast").exit_code == 0
    clean = torch.from_numpy(PHOTOS)
    for severity in (1, 5):
        with pytest.warns(DataWarning, match="expected those of cifar10-c"):
            made = data.load(f"cifar10-c/contrast/{severity}", root=root, download=False)
        assert torch.equal(made.images, corrupt(clean, "contrast", severity, "cifar10-c"))
        assert made.labels.tolist() == LABELS.tolist()


def test_by_default_all_corruptions_are_generated(root: Path) -> None:
    assert run("corrupt", "mnist-c", "--data", root).exit_code == 0
    made = {each.name for each in (root / "mnist_c").iterdir() if each.is_dir()}
    assert made == set(FAMILIES["mnist-c"].corruptions)


def test_a_second_run_changes_no_file(root: Path) -> None:
    first = run("corrupt", "mnist-c", "--data", root, "--names", "stripe")
    before = everything(root)
    assert run("corrupt", "mnist-c", "--data", root, "--names", "stripe,scale").exit_code == 0
    after = everything(root)
    assert first.exit_code == 0
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {str(root / "mnist_c" / "generated.json")}  # names both now
    assert run("corrupt", "mnist-c", "--data", root, "--names", "stripe,scale").exit_code == 0
    assert everything(root) == after


def test_another_folder_can_be_used(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere" / "below"
    result = run("corrupt", "mnist-c", "--data", root, "--names", "stripe", "--out", out)
    assert result.exit_code == 0
    assert f"MNIST-C is in {out / 'mnist_c'}" in result.output
    assert not (root / "mnist_c").exists()
    assert len(data.load("mnist-c/stripe", root=out, download=False)) == 12


def in_one_line(result: Result) -> str:
    """The error that ended a command."""
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    *warnings, line = result.stderr.splitlines()
    assert all(each.startswith("Warning: ") for each in warnings)
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize("command", ["corrupt", "sheet"])
def test_unknown_names_get_a_suggestion(root: Path, command: str) -> None:
    line = in_one_line(run(command, "mnistc", "--data", root))
    assert "unknown family of corruptions 'mnistc'" in line
    assert "did you mean 'mnist-c'?" in line
    assert set(root.iterdir()) == {root / "MNIST", root / "cifar-10-batches-py"}


def test_unknown_corruptions_get_a_suggestion(root: Path) -> None:
    line = in_one_line(run("corrupt", "mnist-c", "--data", root, "--names", "fog,zigzak"))
    assert "unknown corruption of MNIST-C 'zigzak'" in line
    assert "did you mean 'zigzag'?" in line
    assert not (root / "mnist_c").exists()


@pytest.mark.parametrize("command", ["corrupt", "sheet"])
def test_a_missing_clean_dataset_is_reported(tmp_path: Path, command: str) -> None:
    line = in_one_line(run(command, "cifar10-c", "--data", tmp_path))
    assert f"no file at {tmp_path / 'cifar-10-batches-py' / 'test_batch'}" in line
    assert "allow the download" in line
    assert not list(tmp_path.iterdir())


def test_a_damaged_clean_dataset_is_reported(root: Path) -> None:
    path = root / sources()["mnist"].splits["test"][0]
    path.write_bytes(path.read_bytes()[:-1])
    line = in_one_line(run("corrupt", "mnist-c", "--data", root))
    assert f"{path} is damaged" in line
    assert not (root / "mnist_c").exists()


def test_a_folder_that_cannot_be_written_to_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    line = in_one_line(run("corrupt", "mnist-c", "--data", root, "--out", tmp_path / "file"))
    assert f"cannot write into the folder {tmp_path / 'file' / 'mnist_c'}" in line
    line = in_one_line(
        run("sheet", "mnist-c", "--data", root, "--out", tmp_path / "file" / "a.png")
    )
    assert f"to {tmp_path / 'file' / 'a.png'}: Not a directory" in line
    assert (tmp_path / "file").read_text() == "kept"


def test_seeds_are_not_mixed_in_one_folder(root: Path) -> None:
    assert run("corrupt", "mnist-c", "--data", root, "--names", "stripe").exit_code == 0
    line = in_one_line(run("corrupt", "mnist-c", "--data", root, "--seed", 1))
    assert "choose another folder" in line


def test_a_sheet_is_drawn(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    result = run("sheet", "mnist-c", "--data", root, "--out", out)
    assert result.exit_code == 0
    assert str(out) in result.output
    with Image.open(out) as image:
        assert image.format == "PNG"
        # One row per corruption, of 30 pixels with two dots per pixel.
        assert image.height > 60 * len(FAMILIES["mnist-c"].corruptions)
    assert {each.name for each in tmp_path.iterdir()} == {"data", "sheet.png"}


def test_every_dataset_is_listed_with_its_presence(root: Path) -> None:
    run("corrupt", "mnist-c", "--data", root, "--names", "stripe,scale")
    result = run("list", "--data", root)
    assert result.exit_code == 0
    assert f"data root: {root}" in result.output
    lines = [line.strip("│ ").split("│") for line in result.output.splitlines() if "│" in line]
    rows = {first.strip(): [cell.strip() for cell in rest] for first, *rest in lines}
    assert set(rows) == {*sources(), "noise", "noise-grey"}
    assert rows["mnist"] == ["1, 28, 28", "no", "yes"]
    assert rows["svhn"] == ["3, 32, 32", "no", "no"]
    assert rows["mnist-c"] == ["1, 28, 28", "0 of 15 corruptions", "2 of 15 corruptions"]
    assert rows["cifar10-c"] == ["3, 32, 32", "not published", "0 of 19 corruptions"]
    assert rows["noise"] == ["3, 32, 32", "generated", "generated"]


def test_an_unknown_home_folder_is_reported() -> None:
    line = in_one_line(run("list", "--data", "~nobody-of-this-name/data"))
    assert "~nobody-of-this-name/data names the home folder of a user that isn't known" in line


def test_warnings_are_printed_once_in_one_line(root: Path) -> None:
    result = run("sheet", "mnist-c", "--data", root, "--out", root / "sheet.png")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Warning: ")
    assert "the checksum is not the published one" in line
    assert "DataWarning" not in line


def test_a_data_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"the data root {tmp_path / 'file'} is a file" in in_one_line(
        run("list", "--data", tmp_path / "file")
    )
