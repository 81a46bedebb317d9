"""Extraction of known files from .zip and .tar archives.

pooch's Unzip and Untar are not used: they limit no sizes, follow links on Python 3.11, and leave what was
extracted before an error.
"""

import errno
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO

from daedl.data.arrays import require_size

BLOCK = 1 << 20  # bytes per read, chosen
# Errors of a disk that cannot be written to; others come from a damaged archive or a failed connection.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


def extract(archive: Path, names: Collection[str], root: Path) -> None:
    """Extract those of the members `names` that `archive` contains, below `root`.

    Existing files are kept. Files are moved into place after the last one is extracted, so that an
    interruption leaves no partial file.
    """
    missing = {name for name in names if not (root / name).exists()}
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=root) as folder:
        try:
            extracted = _extract(archive, missing, Path(folder))
        # Damaged archives raise many exceptions, zlib.error and NotImplementedError among them.
        except Exception as error:
            raise_disk_error(error, f"cannot unpack {archive}", root)
            raise ValueError(
                f"{archive} is damaged or not an archive ({error}); expected a complete one: remove it, "
                "and copy or download it again"
            ) from error
        for name in extracted:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).replace(root / name)


def raise_disk_error(error: Exception, failure: str, folder: Path) -> None:
    """Raise an OSError that starts with `failure` if `folder` could not be written to."""
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        raise OSError(
            error.errno,
            f"{failure}: {error.strerror}; expected {folder} to be writable and to have space: free some, "
            "or choose another data root",
        ) from error


def _extract(archive: Path, names: set[str], folder: Path) -> set[str]:
    extracted = set()
    for name, size, content in _members(archive):
        if name in names:
            require_size(name, size)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with content() as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)
            extracted.add(name)
    return extracted


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Name, size and content of each regular file; links, modes and owners are ignored."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                yield info.filename, info.file_size, lambda info=info: opened.open(info)  # type: ignore[misc]
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isreg():
                yield member.name, member.size, lambda member=member: tar.extractfile(member)  # type: ignore[misc]
        # gzip verifies its checksum at the end of the file, after the last member.
        while tar.fileobj is not None and tar.fileobj.read(BLOCK):
            pass
