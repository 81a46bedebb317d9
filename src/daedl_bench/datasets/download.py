"""Downloads with pooch, from the published address or a mirror, with an enforced checksum."""

from collections.abc import Sequence
from pathlib import Path

import pooch  # type: ignore[import-untyped, unused-ignore]
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from daedl_bench.datasets.archives import raise_disk_error

TIMEOUT = 30  # seconds without data, chosen
BLOCK = 1 << 18  # bytes per read, chosen


def download(target: Path, urls: Sequence[str], md5: str) -> None:
    """Download `target` from the first of `urls` that serves a file with this checksum.

    pooch writes to a temporary file, verifies it and moves it into place.
    """
    failures = []
    for url in urls:
        bar = _Bar(target.name)
        get = pooch.HTTPDownloader(progressbar=bar, chunk_size=BLOCK, timeout=TIMEOUT)
        try:
            with bar.progress:
                pooch.retrieve(url, f"md5:{md5}", target.name, target.parent, downloader=get)
            return
        except (OSError, ValueError) as error:
            raise_disk_error(error, f"cannot write {target.name}", target.parent)
            failures.append(f"{url} ({error})")
    raise FileNotFoundError(
        f"cannot download {target.name} from {' or '.join(failures)}; expected the file with MD5 {md5}: "
        f"check the connection and try again, or put the file at {target}"
    )


class _Bar:
    """The methods of a tqdm bar that pooch calls, on a rich progress bar."""

    total = 0  # set by pooch, 0 if the server does not say

    def __init__(self, name: str) -> None:
        console = Console(stderr=True)
        columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        hidden = not console.is_terminal
        self.progress = Progress(*columns, console=console, transient=True, disable=hidden)
        self.task = self.progress.add_task("", total=None)

    def update(self, size: int) -> None:
        self.progress.update(self.task, total=self.total or None, advance=size)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.refresh()
