"""Taking files out of archives, without trusting them."""

import errno
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import TypeGuard

from daedl.data.arrays import require_size

BLOCK = 1 << 20  # bytes read at once, chosen
# What a disk says that can't be written to, whatever the archive.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


def is_of_disk(error: Exception) -> TypeGuard[OSError]:
    """Whether it is the disk that failed, and not what was to be written to it."""
    return isinstance(error, OSError) and error.errno in DISK


def raise_of_disk(error: Exception, failed: str, folder: Path) -> None:
    """If the disk of `folder` failed, raise an error that says so; `failed` is what can't be done."""
    if is_of_disk(error):
        raise OSError(
            error.errno,
            f"{failed}: {error.strerror}; expected room in {folder}, and that it may be written to: make "
            "room, or name another data root",
        ) from error


def extract(archive: Path, names: Collection[str], root: Path) -> None:
    """Put those of the members `names` that a .zip or .tar archive holds under `root`.

    A file that is there already is left alone. All are unpacked elsewhere first and moved when the last
    one is whole, so that an interruption leaves no half of a file.
    """
    missing = {name for name in names if not (root / name).exists()}
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=root) as folder:
        try:
            unpack = _unzip if archive.suffix == ".zip" else _untar
            found = unpack(archive, missing, folder)
        # Damaged archives fail in many ways, zlib.error and NotImplementedError among them.
        except Exception as error:
            raise_of_disk(error, f"cannot unpack {archive}", root)
            raise ValueError(
                f"{archive} is damaged, or no such archive ({error}); expected a whole one: remove it, "
                "and copy or download it again"
            ) from error
        for name in found:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).replace(root / name)


def _unzip(archive: Path, names: set[str], folder: str) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        found = names.intersection(opened.namelist())
        for name in found:
            require_size(name, opened.getinfo(name).file_size)
        opened.extractall(folder, found)
    return found


def _untar(archive: Path, names: set[str], folder: str) -> set[str]:
    """Only contents are taken: names are ours, and modes, owners and links stay in the archive."""
    found = set()
    with tarfile.open(archive) as opened:
        for member in opened:
            content = opened.extractfile(member) if member.isfile() else None
            if member.name not in names or content is None:
                continue
            require_size(member.name, member.size)
            path = Path(folder) / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
            found.add(member.name)
        # On to the end, where gzip keeps its checksum.
        while opened.fileobj is not None and opened.fileobj.read(BLOCK):
            pass
    return found
