"""Data sets by name: found, unpacked, downloaded, checked."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest

from daedl.data import DataWarning
from daedl_bench import datasets as data
from daedl_bench.datasets.load import READERS
from daedl_bench.datasets.sources import Source, find, sources

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
LABELS = np.arange(5, dtype=np.uint8)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def as_idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files(pixels: np.ndarray = PIXELS, labels: np.ndarray = LABELS) -> dict[str, bytes]:
    paths = sources()["mnist"].splits["test"]
    return dict(zip(paths, (as_idx(pixels), as_idx(labels)), strict=True))


def put(root: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def published(name: str, address: str, contents: dict[str, bytes]) -> dict[str, Source]:
    """A table in which `name` is published at `address` with these contents."""
    sums = {path: md5(content) for path, content in contents.items()}
    source = replace(sources()[name], urls=(f"{address}/{{name}}",), md5=sums)
    return {name: source}


def cifar_batch(labels: list[int]) -> bytes:
    pixels = np.zeros((len(labels), 3072), np.uint8)
    return pickle.dumps({"data": pixels, "labels": labels}, protocol=4)


def cifar_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for number, name in enumerate(sources()["cifar10"].all_files()):
            content = cifar_batch([number, number])
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


# The table.


def test_the_table_is_whole():
    for name, source in sources().items():
        assert source.format in READERS
        assert len(source.shape) == 3
        assert source.urls
        assert all(url.startswith("http") and "{name}" in url for url in source.urls)
        for file in source.all_files():
            assert len(source.md5[source.remote_of(file)]) == 32, name
        assert all(set(md5) <= set("0123456789abcdef") for md5 in source.md5.values())
    assert len(sources()["cifar100"].class_names) == len(set(sources()["cifar100"].class_names))


def test_every_name_is_known_once():
    names = data.available()
    assert len(set(names)) == len(names) == 6 + 15 + 19 * 6 + 2
    assert {"mnist", "mnist-c/fog", "cifar10-c/fog", "cifar10-c/fog/3", "noise"} <= set(names)


def test_a_name_stands_for_files():
    assert find("mnist-c/fog", sources()).files("test")[0] == "mnist_c/fog/test_images.npy"
    wanted = find("cifar10-c/frost/5", sources())
    assert wanted.files("test") == ("CIFAR-10-C/frost.npy", "CIFAR-10-C/labels.npy")
    assert wanted.severity == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mnst", "did you mean 'mnist'"),
        ("MNIST", "did you mean 'mnist'"),
        ("nois", "did you mean 'noise'"),
        ("mnist/fog", "mnist has no variants"),
        ("mnist-c", "such as mnist-c/brightness"),
        ("mnist-c/fogg", "unknown corruption of mnist-c 'fogg'.*did you mean 'fog'"),
        ("mnist-c/fog/3", "nothing follows mnist-c/fog;"),
        ("cifar10-c/fog/6", "unknown severity '6': expected one of 1, 2, 3, 4, 5"),
        ("cifar10-c/fog/3/1", "nothing follows cifar10-c/fog/3;"),
    ],
)
def test_unknown_names_get_a_suggestion(tmp_path, name, text):
    with pytest.raises(ValueError, match=text):
        data.load(name, root=tmp_path)


def test_unknown_splits_get_a_suggestion(tmp_path):
    for name in ("mnist", "noise"):
        with pytest.raises(ValueError, match=f"unknown split of {name} 'tset'.*'test'"):
            data.load(name, "tset", root=tmp_path)


# The root.


def test_the_root_is_the_argument_else_the_variable_else_the_cache(tmp_path, monkeypatch):
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
    for part in (
        str(tmp_path / "cifar-10-batches-py" / "test_batch"),
        str(tmp_path / "cifar-10-python.tar.gz"),
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_an_unwritable_root_is_named(tmp_path):
    tmp_path.chmod(0o500)
    for root in (tmp_path, tmp_path / "below"):
        with pytest.raises(OSError, match=f"cannot write to the data root {root} "):
            data.load("mnist", root=root)
    tmp_path.chmod(0o700)


def test_a_root_below_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "below"
    with pytest.raises(OSError, match=f"cannot write to the data root {root} ") as caught:
        data.load("mnist", root=root)
    assert "DAEDL_DATA" in str(caught.value)
    assert (tmp_path / "file").read_text() == ""


# Local files.


def test_a_local_file_is_used_with_a_warning_if_its_checksum_differs(tmp_path):
    put(tmp_path, mnist_files())
    with pytest.warns(DataWarning, match="the checksum is not the published one"):
        found = data.load("mnist", root=tmp_path, download=False)
    assert (found.name, found.split, found.num_classes) == ("mnist", "test", 10)
    assert np.array_equal(found.images[:, 0].numpy(), PIXELS)
    assert data.present("mnist", "test", tmp_path)
    assert not data.present("mnist", "train", tmp_path)
    assert data.present("noise")


@pytest.mark.parametrize("zipped", [False, True])
def test_published_files_get_no_warning(tmp_path, zipped):
    contents = mnist_files()
    if zipped:
        contents = {f"{name}.gz": gzip.compress(each) for name, each in contents.items()}
    put(tmp_path, contents)
    table = published("mnist", "http://127.0.0.1:1", contents)
    assert len(data.load("mnist", root=tmp_path, table=table)) == 5


def test_labels_of_another_set_are_named(tmp_path):
    put(tmp_path, mnist_files(labels=LABELS + 20))
    with pytest.raises(
        ValueError, match=r"t10k-labels-idx1-ubyte: .*from 20 to 24; expected 0 to 9"
    ):
        data.load("mnist", root=tmp_path)


def test_labels_of_another_split_are_named(tmp_path):
    """Training labels beside test images: more of them."""
    put(tmp_path, mnist_files(labels=np.arange(6, dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"5 images but .* 6 labels") as caught:
        data.load("mnist", root=tmp_path)
    for name in sources()["mnist"].splits["test"]:
        assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
def test_labels_that_might_be_of_this_set_are_warned_of(tmp_path, zipped):
    """As many, in the same range: nothing but the checksum tells FashionMNIST's labels from MNIST's."""
    wrap, end = (gzip.compress, ".gz") if zipped else (bytes, "")
    ours = {f"{name}{end}": wrap(each) for name, each in mnist_files().items()}
    theirs = {f"{name}{end}": wrap(each) for name, each in mnist_files(labels=LABELS[::-1]).items()}
    images, labels = ours
    put(tmp_path, {images: ours[images], labels: theirs[labels]})
    with pytest.warns(DataWarning, match="the checksum is not the published one") as caught:
        data.load("mnist", root=tmp_path, table=published("mnist", "http://127.0.0.1:1", ours))
    text = str(caught[0].message)
    assert str(tmp_path / labels) in text
    assert str(tmp_path / images) not in text


@pytest.mark.parametrize("known", [True, False], ids=["checksum known", "checksum unknown"])
def test_a_file_that_was_published_as_another_is_refused(tmp_path, known):
    """Its labels have the range and the number of the right ones: only the checksum tells."""
    ours = mnist_files()
    images, labels = ours
    files = mnist_files(PIXELS[::-1], LABELS[::-1])
    theirs = {name.replace("MNIST", "KMNIST"): each for name, each in files.items()}
    other = labels.replace("MNIST", "KMNIST")
    put(tmp_path, {images: ours[images], labels: theirs[other]})
    table = {
        **published("mnist", "http://127.0.0.1:1", ours if known else {}),
        **published("kmnist", "http://127.0.0.1:1", theirs),
    }
    with pytest.raises(ValueError, match=f"is the file that was published as {other};") as caught:
        data.load("mnist", root=tmp_path, table=table)
    assert str(tmp_path / labels) in str(caught.value)


def test_labels_of_another_set_in_a_file_of_any_kind_are_refused(tmp_path):
    """MNIST-C's single files have no published checksum, and a file may have been zipped anew."""
    theirs = LABELS[::-1].copy()
    table = {
        name: replace(sources()[name], md5={}, labels={"test": md5(labels.tobytes())})
        for name, labels in (("mnist", LABELS), ("mnist-c", LABELS), ("kmnist", theirs))
    }
    folder = tmp_path / "mnist_c" / "fog"
    put(tmp_path, mnist_files(labels=theirs))
    folder.mkdir(parents=True)
    np.save(folder / "test_images.npy", PIXELS[..., None])
    np.save(folder / "test_labels.npy", theirs)
    for name, file in (("mnist", "t10k-labels-idx1-ubyte"), ("mnist-c/fog", "test_labels.npy")):
        with pytest.raises(ValueError, match=rf"{file} holds the labels of kmnist \(test\);"):
            data.load(name, root=tmp_path, download=False, table=table)
    np.save(folder / "test_labels.npy", LABELS)
    assert len(data.load("mnist-c/fog", root=tmp_path, download=False, table=table)) == 5


def test_a_batch_of_another_set_is_named(tmp_path):
    """Which one of CIFAR's batches it is can't be said from the labels of all, so all are named."""
    paths = sources()["cifar10"].splits["train"]
    put(tmp_path, {path: cifar_batch([0, 1]) for path in paths} | {paths[1]: cifar_batch([2, 57])})
    with pytest.raises(ValueError, match="from 0 to 57; expected 0 to 9") as caught:
        data.load("cifar10", "train", root=tmp_path)
    assert str(tmp_path / paths[1]) in str(caught.value)


def test_images_of_another_set_are_named(tmp_path):
    put(tmp_path, mnist_files(pixels=PIXELS[:, :14]))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte have shape \(1, 14, 28\)"):
        data.load("mnist", root=tmp_path)


def test_corrupted_sets_are_read_in_their_layout(tmp_path):
    folder = tmp_path / "mnist_c" / "fog"
    folder.mkdir(parents=True)
    np.save(folder / "test_images.npy", PIXELS[..., None])
    np.save(folder / "test_labels.npy", LABELS)
    found = data.load("mnist-c/fog", root=tmp_path, download=False)
    assert np.array_equal(found.images[:, 0].numpy(), PIXELS)
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "snow.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(folder / "labels.npy", np.arange(10))
    assert data.load("cifar10-c/snow/2", root=tmp_path).labels.tolist() == [2, 3]
    assert data.load("cifar10-c/snow/2", root=tmp_path).name == "cifar10-c/snow/2"


def test_noise_is_another_for_another_split():
    test, train = data.load("noise", "test"), data.load("noise", "train")
    assert test.shape == (3, 32, 32)
    assert not np.array_equal(test.images.numpy(), train.images.numpy())
    assert data.load("noise-grey").shape == (1, 28, 28)


# Archives.


def test_an_archive_that_is_there_is_unpacked_and_stays(tmp_path):
    assert not data.present("cifar10", "train", tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(cifar_archive())
    assert data.present("cifar10", "train", tmp_path)
    with pytest.warns(DataWarning):
        found = data.load("cifar10", "train", root=tmp_path, download=False)
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    names = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert names == {"cifar-10-python.tar.gz", "cifar-10-batches-py"}


def test_a_zip_archive_gives_what_it_holds(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, PIXELS[..., None])
    with zipfile.ZipFile(tmp_path / "mnist_c.zip", "w") as archive:
        archive.writestr("mnist_c/fog/test_images.npy", buffer.getvalue())
        archive.writestr("../outside.npy", b"")
        archive.writestr("mnist_c/other/notes.txt", b"")
    with pytest.raises(ValueError, match=r"does not hold mnist_c/fog/test_labels.npy"):
        data.load("mnist-c/fog", root=tmp_path, download=False)
    np.save(tmp_path / "mnist_c" / "fog" / "test_labels.npy", LABELS)
    assert len(data.load("mnist-c/fog", root=tmp_path)) == 5
    assert not (tmp_path.parent / "outside.npy").exists()
    assert not (tmp_path / "mnist_c" / "other").exists()


ARCHIVE = cifar_archive()
SWAPPED = ARCHIVE[:-8] + bytes(4) + ARCHIVE[-4:]  # another checksum


@pytest.mark.parametrize("content", [b"", b"hello", ARCHIVE[:300], ARCHIVE[:-9], SWAPPED])
def test_a_damaged_archive_is_named_and_leaves_nothing(tmp_path, content):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz is damaged") as caught:
        data.load("cifar10", root=tmp_path)
    assert str(path) in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {path.name, ".lock"}


def zipped(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return buffer.getvalue()


ZIP = zipped({"mnist_c/fog/test_images.npy": PIXELS, "mnist_c/fog/test_labels.npy": LABELS})
DIRECTORY = ZIP.index(b"PK\x01\x02")


def altered(content: bytes, place: int, new: bytes) -> bytes:
    return content[:place] + new + content[place + len(new) :]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        ZIP[:300],
        ZIP[:-3],
        altered(ZIP, 200, b"\xff" * 9),
        altered(ZIP, DIRECTORY + 8, b"\x01"),  # needs a password
        altered(ZIP, DIRECTORY + 10, b"\x63"),  # packed in an unknown way
        altered(ZIP, DIRECTORY + 24, b"\xff\xff\xff\x80"),  # unpacks to 2 GB
    ],
    ids=range(8),
)
def test_a_damaged_zip_archive_is_named_and_leaves_nothing(tmp_path, content):
    path = tmp_path / "mnist_c.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mnist_c.zip is damaged") as caught:
        data.load("mnist-c/fog", root=tmp_path, download=False)
    assert str(path) in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {path.name, ".lock"}


def test_a_member_that_unpacks_to_too_much_is_not_unpacked(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    with gzip.open(path, "wb") as file:
        member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        member.size = 1 << 40
        file.write(member.tobuf())
    with pytest.raises(
        ValueError, match=r"test_batch unpacks to 1,099,511,627,776 bytes"
    ) as caught:
        data.load("cifar10", root=tmp_path)
    assert str(path) in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {path.name, ".lock"}


def test_a_member_that_comes_twice_does_no_harm(tmp_path):
    content = cifar_batch([3])
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        for _ in range(2):
            member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.warns(DataWarning):
        assert data.load("cifar10", root=tmp_path).labels.tolist() == [3]


def test_a_full_disk_is_not_taken_for_a_damaged_archive(tmp_path):
    resource = pytest.importorskip("resource", reason="no limits for files here")
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(ARCHIVE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=f"cannot unpack {path}: File too large") as caught:
            data.load("cifar10", root=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "damaged" not in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {path.name, ".lock"}


def test_a_malicious_batch_in_an_archive_is_refused(tmp_path):
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    evil = b"cbuiltins\nexec\n(Vraise SystemExit\ntR."
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        member.size = len(evil)
        archive.addfile(member, io.BytesIO(evil))
    with pytest.raises(ValueError, match=r"it asks for builtins.exec") as caught:
        data.load("cifar10", root=tmp_path)
    assert str(path) in str(caught.value)


def test_a_link_in_place_of_a_member_is_not_followed(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(member)
    with pytest.raises(ValueError, match="does not hold cifar-10-batches-py/test_batch"):
        data.load("cifar10", root=tmp_path)


# Downloads.


def test_missing_files_are_downloaded_once(site, tmp_path):
    contents = {f"{name}.gz": gzip.compress(each) for name, each in mnist_files().items()}
    site.files = {f"/{Path(name).name}": content for name, content in contents.items()}
    table = published("mnist", site.address, contents)
    for _ in range(2):
        found = data.load("mnist", root=tmp_path / "new", table=table)
    assert np.array_equal(found.images[:, 0].numpy(), PIXELS)
    assert len(site.asked) == 2


def test_a_downloaded_archive_is_unpacked_and_removed(site, tmp_path):
    content = cifar_archive()
    site.files["/cifar-10-python.tar.gz"] = content
    table = published("cifar10", site.address, {"cifar-10-python.tar.gz": content})
    assert data.load("cifar10", "test", tmp_path, table=table).labels.tolist() == [5, 5]
    assert len(data.load("cifar10", "train", tmp_path, table=table)) == 10
    assert len(site.asked) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"cifar-10-batches-py", ".lock"}


def test_a_download_with_a_wrong_checksum_leaves_nothing(site, tmp_path):
    site.files["/cifar-10-python.tar.gz"] = cifar_archive()
    table = published("cifar10", site.address, {"cifar-10-python.tar.gz": b"as published"})
    with pytest.raises(FileNotFoundError, match="refused: its checksum differs"):
        data.load("cifar10", root=tmp_path, table=table)
    assert {path.name for path in tmp_path.iterdir()} == {".lock"}


def test_a_download_that_fails_says_where_to_put_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    table = published("svhn", "http://127.0.0.1:1", {"test_32x32.mat": b""})
    with pytest.raises(FileNotFoundError) as caught:
        data.load("svhn", root=tmp_path, table=table)
    assert "http://127.0.0.1:1/test_32x32.mat" in str(caught.value)
    assert str(tmp_path / "test_32x32.mat") in str(caught.value)
