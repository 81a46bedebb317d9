"""Datasets by name: located, extracted, downloaded, verified."""

import gzip
import hashlib
import io
import os
import pickle
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np
import pooch
import pytest

from daedl.data import DataWarning
from daedl_bench import datasets as data
from daedl_bench.datasets.sources import select, sources

NOWHERE = "http://127.0.0.1:1"  # no server listens on this port
TAR, ZIP = "cifar-10-python.tar.gz", "mnist_c.zip"
TEST_BATCH = "cifar-10-batches-py/test_batch"


def cifar_batch(labels: list[int]) -> bytes:
    pixels = np.zeros((len(labels), 3072), np.uint8)
    return pickle.dumps({"data": pixels, "labels": labels}, protocol=4)


def tarred(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


CIFAR_FILES = sources()["cifar10"].all_files()
CIFAR = tarred(*((name, cifar_batch([i, i])) for i, name in enumerate(CIFAR_FILES)))


# Names.


def test_table_is_complete():
    for name, source in sources().items():
        assert callable(import_module(f"daedl_bench.datasets.formats.{source.format}").read)
        assert source.urls
        assert all(url.startswith("http") and "{name}" in url for url in source.urls)
        for file in source.all_files():
            assert len(source.md5[source.remote_of(file)]) == 32, name
        assert all(set(md5) <= set("0123456789abcdef") for md5 in source.md5.values())
        assert len(source.class_names) == len(set(source.class_names))


def test_names_are_unique():
    names = [name for source in sources().values() for name in source.names()]
    assert len(set(names)) == len(names)
    assert {"mnist", "mnist-c/fog", "cifar10-c/fog", "cifar10-c/fog/3"} <= set(names)
    for name in names:
        assert select(name, sources()).files("test")
    groups = data.corrupted_sets("cifar10-c")
    assert {name for group in groups.values() for name in group} < set(names)
    assert data.corrupted_sets("mnist") == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mnst", "did you mean 'mnist'"),
        ("MNIST", "did you mean 'mnist'"),
        ("nois", "did you mean 'noise'"),
        ("mnist/fog", "expected mnist:"),
        ("mnist-c", "expected mnist-c/CORRUPTION:"),
        ("mnist-c/fogg", "unknown corruption of mnist-c 'fogg'.*did you mean 'fog'"),
        ("mnist-c/fog/3", "expected mnist-c/CORRUPTION:"),
        ("cifar10-c/fog/6", r"CORRUPTION\[/SEVERITY\]"),
        ("cifar10-c/fog/3/1", r"CORRUPTION\[/SEVERITY\]"),
    ],
)
def test_unknown_names_get_a_suggestion(tmp_path, name, text):
    with pytest.raises(ValueError, match=text):
        data.load(name, root=tmp_path)


@pytest.mark.parametrize("name", ["mnist", "noise"])
def test_unknown_splits_get_a_suggestion(tmp_path, name):
    with pytest.raises(ValueError, match=f"split of {name} 'tset'.*'test'"):
        data.load(name, "tset", root=tmp_path)


# The data root.


def test_root_is_the_argument_or_the_variable_or_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DAEDL_DATA", str(tmp_path / "variable"))
    assert data.data_root(tmp_path) == tmp_path
    assert data.data_root() == tmp_path / "variable"
    monkeypatch.setenv("DAEDL_DATA", "")
    assert data.data_root() == Path(pooch.os_cache("daedl"))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="expected a folder"):
        data.data_root(tmp_path / "file")


def test_missing_files_say_where_to_put_them(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        data.load("cifar10", root=tmp_path, download=False)
    address = f"https://www.cs.toronto.edu/~kriz/{TAR}"
    for part in (str(tmp_path / TEST_BATCH), str(tmp_path / TAR), address):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_root_below_a_file_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "below"
    with pytest.raises(OSError, match=f"cannot write into the folder {root}.*DAEDL_DATA"):
        data.load("mnist", root=root)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root can write")
def test_unwritable_root_is_reported(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match=f"cannot write into the folder {tmp_path}"):
        data.load("mnist", root=tmp_path)
    tmp_path.chmod(0o700)


# Local files.


def test_another_checksum_issues_a_warning(tmp_path, files):
    files.put(tmp_path, files.mnist())
    with pytest.warns(DataWarning, match="checksum differs"):
        loaded = data.load("mnist", root=tmp_path, download=False)
    assert (loaded.name, loaded.split, loaded.num_classes) == ("mnist", "test", 10)
    assert np.array_equal(loaded.images[:, 0].numpy(), files.pixels)
    assert data.present("mnist", "test", tmp_path)
    assert not data.present("mnist", "train", tmp_path)
    assert data.present("noise")


@pytest.mark.parametrize("end", ["", ".gz"])
def test_only_files_with_another_checksum_are_named(tmp_path, files, end):
    """Labels of FashionMNIST differ from labels of MNIST in nothing but the checksum."""
    wrap = gzip.compress if end else bytes
    ours = {f"{name}{end}": wrap(each) for name, each in files.mnist().items()}
    table = files.published("mnist", NOWHERE, ours)
    files.put(tmp_path, ours)
    assert len(data.load("mnist", root=tmp_path, table=table)) == 5  # without a warning
    images, labels = ours
    theirs = list(files.mnist(labels=files.labels[::-1]).values())
    files.put(tmp_path, {labels: wrap(theirs[1])})
    with pytest.warns(DataWarning, match="checksum differs") as caught:
        data.load("mnist", root=tmp_path, table=table)
    assert str(tmp_path / labels) in str(caught[0].message)
    assert str(tmp_path / images) not in str(caught[0].message)


@pytest.mark.parametrize(
    ("pixels", "labels", "text"),
    [
        (5, np.arange(20, 25), r"t10k-labels-idx1-ubyte: .*from 20 to 24; expected 0 to 9"),
        (5, np.arange(6), "t10k-images-idx3-ubyte .*5 images but .*t10k-labels.* 6 labels"),
        (14, np.arange(5), r"t10k-images-idx3-ubyte have shape \(1, 14, 28\)"),
    ],
)
def test_files_of_another_dataset_are_named(tmp_path, files, pixels, labels, text):
    images = files.pixels[:, :14] if pixels == 14 else files.pixels
    files.put(tmp_path, files.mnist(images, labels.astype(np.uint8)))
    with pytest.raises(ValueError, match=text):
        data.load("mnist", root=tmp_path)


@pytest.mark.parametrize("known", [True, False], ids=["checksum known", "checksum unknown"])
def test_files_published_under_another_name_are_rejected(tmp_path, files, known):
    ours = files.mnist()
    images, labels = ours
    others = files.mnist(files.pixels[::-1], files.labels[::-1])
    theirs = {name.replace("MNIST", "KMNIST"): each for name, each in others.items()}
    other = labels.replace("MNIST", "KMNIST")
    files.put(tmp_path, {images: ours[images], labels: theirs[other]})
    table = {
        **files.published("mnist", NOWHERE, ours if known else {}),
        **files.published("kmnist", NOWHERE, theirs),
    }
    with pytest.raises(ValueError, match=f"{labels} was published as {other}"):
        data.load("mnist", root=tmp_path, table=table)


def test_labels_of_another_dataset_are_rejected_in_any_file(tmp_path, files):
    """The single files of MNIST-C have no published checksum, and files may be compressed again."""
    ours, theirs = files.labels, files.labels[::-1].copy()
    table = {
        name: msgspec.structs.replace(
            sources()[name], md5={}, labels={"test": hashlib.md5(labels.tobytes()).hexdigest()}
        )
        for name, labels in (("mnist", ours), ("mnist-c", ours), ("kmnist", theirs))
    }
    corrupted = [f"mnist_c/fog/test_{part}.npy" for part in ("images", "labels")]
    files.put(tmp_path, files.mnist(labels=theirs))
    files.put(tmp_path, {corrupted[0]: npy(files.pixels[..., None]), corrupted[1]: npy(theirs)})
    for name, file in (("mnist", "t10k-labels-idx1-ubyte"), ("mnist-c/fog", "test_labels.npy")):
        with pytest.raises(ValueError, match=rf"{file} holds the labels of kmnist \(test\);"):
            data.load(name, root=tmp_path, download=False, table=table)
    files.put(tmp_path, {corrupted[1]: npy(ours)})
    assert len(data.load("mnist-c/fog", root=tmp_path, download=False, table=table)) == 5


def test_batches_of_another_dataset_are_named(tmp_path, files):
    """The labels do not tell which of the batches is wrong, so all are named."""
    paths = sources()["cifar10"].splits["train"]
    batches = {path: cifar_batch([0, 1]) for path in paths} | {paths[1]: cifar_batch([2, 57])}
    files.put(tmp_path, batches)
    with pytest.raises(ValueError, match="from 0 to 57; expected 0 to 9") as caught:
        data.load("cifar10", "train", root=tmp_path)
    assert str(tmp_path / paths[1]) in str(caught.value)


def test_severities_are_read_in_sequence(tmp_path, files):
    images = np.random.default_rng(1).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    paths = ("CIFAR-10-C/snow.npy", "CIFAR-10-C/labels.npy")
    files.put(tmp_path, dict(zip(paths, (npy(images), npy(np.arange(10))), strict=True)))
    for severity in range(1, 6):
        loaded = data.load(f"cifar10-c/snow/{severity}", root=tmp_path)
        part = slice(2 * severity - 2, 2 * severity)
        assert loaded.name == f"cifar10-c/snow/{severity}"
        assert loaded.labels.tolist() == list(range(10))[part]
        assert np.array_equal(loaded.images.numpy(), images[part].transpose(0, 3, 1, 2))
    assert len(data.load("cifar10-c/snow", root=tmp_path)) == 10
    files.put(tmp_path, {paths[0]: npy(images[:9])})
    for name, text in (("snow/1", "severities of equal size"), ("snow", "9 images but .* 10")):
        with pytest.raises(ValueError, match=text) as caught:
            data.load(f"cifar10-c/{name}", root=tmp_path)
        assert all(str(tmp_path / path) in str(caught.value) for path in paths)


@pytest.mark.parametrize("shape", [(1 << 10, 1 << 10, 1 << 10), (1 << 40, 28, 28), (1 << 62, 4, 4)])
def test_npy_headers_are_not_trusted(tmp_path, files, shape, little_memory):
    buffer = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    content = {"images": buffer.getvalue() + bytes(10), "labels": npy(files.labels)}
    files.put(tmp_path, {f"mnist_c/fog/test_{key}.npy": each for key, each in content.items()})
    with little_memory(), pytest.raises(ValueError, match=r"test_images.npy is damaged"):
        data.load("mnist-c/fog", root=tmp_path)


def test_noise_differs_between_splits():
    test, train = data.load("noise", "test"), data.load("noise", "train")
    assert test.shape == (3, 32, 32)
    assert not np.array_equal(test.images.numpy(), train.images.numpy())
    assert data.load("noise-grey").shape == (1, 28, 28)


# Archives.


def test_local_archive_is_extracted_and_kept(tmp_path):
    assert not data.present("cifar10", "train", tmp_path)
    (tmp_path / TAR).write_bytes(CIFAR)
    assert data.present("cifar10", "train", tmp_path)
    with pytest.warns(DataWarning):
        loaded = data.load("cifar10", "train", root=tmp_path, download=False)
    assert loaded.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert {path.name for path in tmp_path.iterdir()} == {TAR, "cifar-10-batches-py", ".lock"}


def test_only_known_members_are_extracted(tmp_path, files):
    contents = {
        "mnist_c/fog/test_images.npy": npy(files.pixels[..., None]),
        "../outside.npy": b"",
        "mnist_c/other/notes.txt": b"",
    }
    (tmp_path / ZIP).write_bytes(zipped(contents))
    with pytest.raises(ValueError, match=r"does not hold mnist_c/fog/test_labels.npy"):
        data.load("mnist-c/fog", root=tmp_path, download=False)
    files.put(tmp_path, {"mnist_c/fog/test_labels.npy": npy(files.labels)})
    assert len(data.load("mnist-c/fog", root=tmp_path)) == 5
    assert not (tmp_path.parent / "outside.npy").exists()
    assert not (tmp_path / "mnist_c" / "other").exists()


GOOD_ZIP = zipped({"mnist_c/fog/test_images.npy": bytes(range(256)) * 9})
DIRECTORY = GOOD_ZIP.index(b"PK\x01\x02")


def altered(content: bytes, position: int, new: bytes) -> bytes:
    return content[:position] + new + content[position + len(new) :]


def tar_header(**fields: object) -> bytes:
    member = tarfile.TarInfo(TEST_BATCH)
    for key, value in fields.items():
        setattr(member, key, value)
    return gzip.compress(member.tobuf())


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        (TAR, b"", "is damaged"),
        (TAR, b"hello", "is damaged"),
        (TAR, CIFAR[:300], "is damaged"),
        (TAR, CIFAR[:-9], "is damaged"),
        (TAR, CIFAR[:-8] + bytes(4) + CIFAR[-4:], "is damaged"),  # another gzip checksum
        (TAR, tar_header(size=1 << 40), "unpacks to 1,099,511,627,776 bytes"),
        (TAR, tar_header(type=tarfile.SYMTYPE, linkname="/etc/hostname"), "does not hold"),
        (TAR, tar_header(type=tarfile.LNKTYPE, linkname="/etc/hostname"), "does not hold"),
        (ZIP, b"", "is damaged"),
        (ZIP, b"hello", "is damaged"),
        (ZIP, GOOD_ZIP[:300], "is damaged"),
        (ZIP, GOOD_ZIP[:-3], "is damaged"),
        (ZIP, altered(GOOD_ZIP, 80, b"\xff" * 9), "is damaged"),
        (ZIP, altered(GOOD_ZIP, DIRECTORY + 8, b"\x01"), "is damaged"),  # encrypted
        (ZIP, altered(GOOD_ZIP, DIRECTORY + 10, b"\x63"), "is damaged"),  # unknown compression
        (ZIP, altered(GOOD_ZIP, DIRECTORY + 24, b"\xff\xff\xff\x80"), "unpacks to 2,1"),
    ],
    ids=range(16),
)
def test_damaged_and_hostile_archives_are_named_and_leave_no_files(tmp_path, name, content, text):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*{text}") as caught:
        data.load("cifar10" if name == TAR else "mnist-c/fog", root=tmp_path, download=False)
    assert str(path) in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {name, ".lock"}


def test_repeated_members_are_accepted(tmp_path):
    member = (TEST_BATCH, cifar_batch([3]))
    (tmp_path / TAR).write_bytes(tarred(member, member))
    with pytest.warns(DataWarning):
        assert data.load("cifar10", root=tmp_path).labels.tolist() == [3]


def test_full_disk_is_not_reported_as_damage(tmp_path):
    resource = pytest.importorskip("resource", reason="the platform has no file size limits")
    path = tmp_path / TAR
    path.write_bytes(CIFAR)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=f"cannot unpack {path}: File too large"):
            data.load("cifar10", root=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {each.name for each in tmp_path.iterdir()} == {TAR, ".lock"}


# Downloads.


def test_missing_files_are_downloaded_once(site, tmp_path, files):
    contents = {f"{name}.gz": gzip.compress(each) for name, each in files.mnist().items()}
    site.files = {f"/{Path(name).name}": content for name, content in contents.items()}
    table = files.published("mnist", site.address, contents)
    for _ in range(2):
        loaded = data.load("mnist", root=tmp_path / "new", table=table)
    assert np.array_equal(loaded.images[:, 0].numpy(), files.pixels)
    assert len(site.requested) == 2


def test_downloaded_archive_is_extracted_and_removed(site, tmp_path, files):
    site.files[f"/{TAR}"] = CIFAR
    sums = {TAR: CIFAR} | {name: cifar_batch([i, i]) for i, name in enumerate(CIFAR_FILES)}
    table = files.published("cifar10", site.address, sums)
    last = len(CIFAR_FILES) - 1
    assert data.load("cifar10", "test", tmp_path, table=table).labels.tolist() == [last, last]
    assert len(data.load("cifar10", "train", tmp_path, table=table)) == 10
    assert len(site.requested) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"cifar-10-batches-py", ".lock"}
