"""Having the files of a data set: those that are there, then archives that are there, then downloads."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from daedl.storage import require_writable
from daedl_bench.datasets.archives import extract
from daedl_bench.datasets.download import download as fetch
from daedl_bench.datasets.root import VARIABLE
from daedl_bench.datasets.sources import Source, Wanted


def local(source: Source, file: str, root: Path) -> Path | None:
    """Where `file`, or the same gzipped, lies under `root`, if it does."""
    remote = source.remote_of(file)
    names = (file, remote) if _is_file_itself(file, remote) else (file,)
    return next((root / name for name in names if (root / name).is_file()), None)


def at_hand(source: Source, file: str, root: Path) -> bool:
    """Whether `file` needs no download: it, or the archive that should hold it, lies under `root`."""
    return local(source, file, root) is not None or (root / source.remote_of(file)).is_file()


def obtain(wanted: Wanted, split: str, root: Path, download: bool) -> list[Path]:
    """The paths of the files of `split`; what isn't there is unpacked or, if it may be, downloaded."""
    source, files = wanted.source, wanted.files(split)
    if any(local(source, file, root) is None for file in files):
        _require_source(wanted, files, root, download)
        with _locked(root):
            for file in files:
                if local(source, file, root) is None:
                    _obtain_one(source, file, root)
    found = [(file, local(source, file, root)) for file in files]
    if lost := [file for file, path in found if path is None]:
        raise ValueError(
            f"{root / source.remote_of(lost[0])} does not hold {lost[0]}; expected the archive of "
            f"{source.name} as published: remove it to have it downloaded"
        )
    return [path for _, path in found if path is not None]


def _obtain_one(source: Source, file: str, root: Path) -> None:
    remote = source.remote_of(file)
    target = root / remote
    downloaded = not target.exists()
    if downloaded:
        fetch(target, source.urls_of(remote), source.md5[remote])
    if not _is_file_itself(file, remote):
        extract(target, source.all_files(), root)
        if downloaded:
            # What it held lies beside it now; a user's own archive stays.
            target.unlink()


def _is_file_itself(file: str, remote: str) -> bool:
    return remote in (file, f"{file}.gz")


def _require_source(wanted: Wanted, files: tuple[str, ...], root: Path, download: bool) -> None:
    """Raise if a file is neither there, nor in an archive that is there, nor may be downloaded."""
    source = wanted.source
    for file in files:
        remote = source.remote_of(file)
        if download or at_hand(source, file, root):
            continue
        raise FileNotFoundError(
            f"{wanted.name} is not under the data root {root}: no file at {root / file}; expected it "
            f"there, or {root / remote} from {' or '.join(source.urls_of(remote))}: put it there, allow "
            f"the download, or name another data root ({VARIABLE})"
        )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One process at a time downloads and unpacks; the others find the files when it is done."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        require_writable(root)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write to the data root {root} ({error.strerror}); expected a folder that may be written "
            f"to: name another one ({VARIABLE})",
        ) from error
    with FileLock(root / ".lock"):
        yield
