"""Taking files out of archives, without trusting them."""

import gzip
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, OSError)


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
        except BROKEN as error:
            raise ValueError(
                f"{archive} is damaged, or no such archive ({error}); expected a whole one: remove it, "
                "and copy or download it again"
            ) from error
        for name in found:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).replace(root / name)


def _unzip(archive: Path, names: set[str], folder: str) -> list[str]:
    with zipfile.ZipFile(archive) as opened:
        found = [name for name in opened.namelist() if name in names]
        opened.extractall(folder, found)
    return found


def _untar(archive: Path, names: set[str], folder: str) -> list[str]:
    """Only contents are taken: names are ours, and modes, owners and links stay in the archive."""
    found = []
    with tarfile.open(archive) as opened:
        for member in opened:
            content = opened.extractfile(member) if member.isfile() else None
            if member.name not in names or content is None:
                continue
            path = Path(folder) / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
            found.append(member.name)
    return found
