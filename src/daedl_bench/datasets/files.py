"""The files of a dataset: located below the data root, extracted from an archive, or downloaded."""

import os
from pathlib import Path

import pooch  # type: ignore[import-untyped, unused-ignore]
from filelock import FileLock

from daedl.storage import expand_user, require_folder
from daedl_bench.datasets.archives import extract
from daedl_bench.datasets.download import download
from daedl_bench.datasets.sources import Selection, Source

VARIABLE = "DAEDL_DATA"


def data_root(root: str | Path | None = None) -> Path:
    """`root` if given, else the folder in DAEDL_DATA, else the user's cache folder."""
    given = root or os.environ.get(VARIABLE)
    folder = expand_user(given) if given else Path(pooch.os_cache("daedl"))
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            f"the data root {folder} is a file; expected a folder: pass another one, or set {VARIABLE}"
        )
    return folder


def is_available(source: Source, file: str, root: Path) -> bool:
    """Whether `file`, or the archive that should hold it, is below `root`."""
    return _local(source, file, root) is not None or (root / source.remote_of(file)).is_file()


def obtain(selection: Selection, split: str, root: Path, allow_download: bool) -> list[Path]:
    """Paths of the files of `split`; missing ones are extracted or, if allowed, downloaded."""
    source, files = selection.source, selection.files(split)
    if any(_local(source, file, root) is None for file in files):
        for file in files:
            if not allow_download and not is_available(source, file, root):
                raise FileNotFoundError(_instructions(selection, file, root))
        require_folder(root, f"choose another data root ({VARIABLE})")
        # Concurrent processes download and extract once.
        with FileLock(root / ".lock"):
            for file in files:
                if _local(source, file, root) is None:
                    _obtain(source, file, root)
    paths = [path for file in files if (path := _local(source, file, root)) is not None]
    if len(paths) < len(files):
        archive = root / source.remote_of(files[0])
        lost = ", ".join(file for file in files if _local(source, file, root) is None)
        raise ValueError(
            f"{archive} does not hold {lost}; expected the published archive of {source.name}: remove it "
            "to download it again"
        )
    return paths


def _local(source: Source, file: str, root: Path) -> Path | None:
    """The path of `file`, plain or gzipped as published, if it exists."""
    names = (file,) if source.is_archived(file) else (file, source.remote_of(file))
    return next((root / name for name in names if (root / name).is_file()), None)


def _obtain(source: Source, file: str, root: Path) -> None:
    remote = source.remote_of(file)
    target = root / remote
    downloaded = not target.exists()
    if downloaded:
        download(target, source.urls_of(remote), source.md5[remote])
    if source.is_archived(file):
        extract(target, source.all_files(), root)
        if downloaded:  # a user's own archive is kept
            target.unlink()


def _instructions(selection: Selection, file: str, root: Path) -> str:
    source, remote = selection.source, selection.source.remote_of(file)
    return (
        f"{selection.name} is not below the data root {root}: no file at {root / file}; expected it "
        f"there, or {root / remote} from {' or '.join(source.urls_of(remote))}: put it there, allow the "
        f"download, or choose another data root ({VARIABLE})"
    )
