"""Downloads from a server on this machine: checked, resumed, from mirrors; nothing bad stays behind."""

import hashlib
import random

import pytest

from daedl_bench.datasets.download import ATTEMPTS, download

CONTENT = random.Random(0).randbytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


def test_a_file_arrives_whole(site, tmp_path):
    site.files["/set.gz"] = CONTENT
    target = tmp_path / "folder" / "set.gz"
    download(target, [f"{site.address}/set.gz"], MD5)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


def test_a_bar_shows_the_file_and_how_much_of_it_arrived(site, tmp_path, monkeypatch, capsys):
    site.files["/set.gz"] = CONTENT
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal has it
    download(tmp_path / "set.gz", [f"{site.address}/set.gz"], MD5)
    shown = capsys.readouterr().err
    assert "set.gz" in shown
    assert "3.0/3.0 MB" in shown


def test_a_full_disk_is_told_at_once(site, tmp_path):
    resource = pytest.importorskip("resource", reason="no limits for files here")
    site.files["/set.gz"] = CONTENT
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=r"cannot keep set.gz: File too large; expected room"):
            download(tmp_path / "set.gz", [f"{site.address}/set.gz"] * 2, MD5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert site.asked == [("/set.gz", None)]


def test_a_wrong_checksum_is_refused_and_nothing_stays(site, tmp_path):
    site.files["/set.gz"] = CONTENT[:-1] + b"?"
    target = tmp_path / "set.gz"
    with pytest.raises(FileNotFoundError, match="refused: its checksum differs") as caught:
        download(target, [f"{site.address}/set.gz"], MD5)
    assert MD5 in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_cut_connection_is_taken_up_where_it_broke(site, tmp_path):
    site.files["/set.gz"] = CONTENT
    site.cut = 1
    download(tmp_path / "set.gz", [f"{site.address}/set.gz"], MD5)
    assert (tmp_path / "set.gz").read_bytes() == CONTENT
    assert site.asked == [("/set.gz", None), ("/set.gz", "bytes=1500000-")]


def test_a_later_call_goes_on_with_the_partial_file(site, tmp_path):
    site.files["/set.gz"] = CONTENT
    site.cut = ATTEMPTS
    target = tmp_path / "set.gz"
    with pytest.raises(FileNotFoundError, match="the connection was cut after 2,625,000 of"):
        download(target, [f"{site.address}/set.gz"], MD5)
    assert not target.exists()
    download(target, [f"{site.address}/set.gz"], MD5)
    assert target.read_bytes() == CONTENT
    assert site.asked[-1] == ("/set.gz", "bytes=2625000-")
    assert list(tmp_path.iterdir()) == [target]


def test_a_mirror_goes_on_with_the_partial_file(site, tmp_path):
    site.files["/a/set.gz"] = site.files["/b/set.gz"] = CONTENT
    site.cut = ATTEMPTS
    download(tmp_path / "set.gz", [f"{site.address}/{folder}/set.gz" for folder in "ab"], MD5)
    assert (tmp_path / "set.gz").read_bytes() == CONTENT
    assert site.asked[-1] == ("/b/set.gz", "bytes=2625000-")


def test_a_server_without_ranges_sends_it_all_again(site, tmp_path):
    site.files["/set.gz"] = CONTENT
    site.cut, site.ranges = 1, False
    download(tmp_path / "set.gz", [f"{site.address}/set.gz"], MD5)
    assert (tmp_path / "set.gz").read_bytes() == CONTENT


@pytest.mark.parametrize("size", [1000, len(CONTENT), len(CONTENT) + 5])
def test_a_partial_file_of_something_else_does_no_harm(site, tmp_path, size):
    site.files["/set.gz"] = CONTENT
    (tmp_path / "set.gz.part").write_bytes(bytes(size))
    download(tmp_path / "set.gz", [f"{site.address}/set.gz"], MD5)
    assert (tmp_path / "set.gz").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["set.gz"]


def test_a_senseless_length_is_not_believed(site, tmp_path):
    site.files["/set.gz"] = CONTENT
    site.length = "many"
    (tmp_path / "set.gz.part").write_bytes(CONTENT[:1000])
    download(tmp_path / "set.gz", [f"{site.address}/set.gz"], MD5)
    assert (tmp_path / "set.gz").read_bytes() == CONTENT


def test_a_senseless_address_ends(tmp_path):
    (tmp_path / "set.gz.part").write_bytes(CONTENT[:1000])
    with pytest.raises(FileNotFoundError, match=r"nowhere.*put the file at .*set.gz"):
        download(tmp_path / "set.gz", ["nowhere"], MD5)


@pytest.mark.parametrize("other", [None, b"not what was published"])
def test_after_404_or_a_wrong_file_comes_the_mirror(site, tmp_path, other):
    site.files["/mirror/set.gz"] = CONTENT
    if other is not None:
        site.files["/set.gz"] = other
    download(tmp_path / "set.gz", [f"{site.address}/set.gz", f"{site.address}/mirror/set.gz"], MD5)
    assert (tmp_path / "set.gz").read_bytes() == CONTENT
    assert [path for path, _ in site.asked] == ["/set.gz", "/mirror/set.gz"]


def test_offline_the_error_says_which_file_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    target = tmp_path / "MNIST" / "raw" / "set.gz"
    # Nothing listens on port 1.
    urls = ["http://127.0.0.1:1/set.gz", "http://127.0.0.1:1/mirror/set.gz"]
    with pytest.raises(FileNotFoundError) as caught:
        download(target, urls, MD5)
    assert all(part in str(caught.value) for part in (*urls, str(target), MD5, "refused"))
    assert not list(tmp_path.rglob("*.gz*"))
