"""Downloads from a local server: verified, from mirrors, without partial files."""

import hashlib
import random

import pytest

from daedl_bench.datasets.download import download

CONTENT = random.Random(0).randbytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


def test_download_writes_the_file_only(site, tmp_path):
    site.files["/set.gz"] = CONTENT
    target = tmp_path / "folder" / "set.gz"
    download(target, [f"{site.address}/set.gz"], MD5)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def test_progress_shows_name_and_size(site, tmp_path, monkeypatch, capsys):
    site.files["/set.gz"] = CONTENT
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)  # as on a terminal
    download(tmp_path / "set.gz", [f"{site.address}/set.gz"], MD5)
    shown = capsys.readouterr().err
    assert "set.gz" in shown
    assert "3.00M/3.00M" in shown


def test_full_disk_is_reported_without_trying_mirrors(site, tmp_path):
    resource = pytest.importorskip("resource", reason="the platform has no file size limits")
    site.files["/set.gz"] = CONTENT
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=r"cannot write set.gz: File too large"):
            download(tmp_path / "set.gz", [f"{site.address}/set.gz"] * 2, MD5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert site.requested == ["/set.gz"]


@pytest.mark.parametrize("other", [None, b"another file", "cut"])
def test_mirror_follows_missing_wrong_and_truncated_files(site, tmp_path, other):
    site.files["/mirror/set.gz"] = CONTENT
    if other is not None:
        site.files["/set.gz"] = CONTENT if other == "cut" else other
    site.cut = int(other == "cut")
    download(tmp_path / "set.gz", [f"{site.address}/set.gz", f"{site.address}/mirror/set.gz"], MD5)
    assert (tmp_path / "set.gz").read_bytes() == CONTENT
    assert [each.name for each in tmp_path.iterdir()] == ["set.gz"]
    assert site.requested == ["/set.gz", "/mirror/set.gz"]


def test_wrong_checksum_leaves_no_file(site, tmp_path):
    site.files["/set.gz"] = CONTENT[:-1] + b"?"
    with pytest.raises(FileNotFoundError, match="does not match the known hash") as caught:
        download(tmp_path / "set.gz", [f"{site.address}/set.gz"], MD5)
    assert MD5 in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "urls", [["nowhere"], ["http://127.0.0.1:1/set.gz", "http://127.0.0.1:1/mirror/set.gz"]]
)
def test_failure_says_which_file_to_put_where(tmp_path, monkeypatch, urls):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    target = tmp_path / "MNIST" / "raw" / "set.gz"
    with pytest.raises(FileNotFoundError) as caught:
        download(target, urls, MD5)
    assert all(part in str(caught.value) for part in (*urls, str(target), MD5))
    assert not list(tmp_path.rglob("*.gz*"))
