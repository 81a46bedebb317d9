"""Downloads: checked, resumed, from the published address or a mirror; nothing half-written stays.

Pooch checks the sum and puts the file into place. It can't resume, so what it is given for downloading is
a short one of ours that goes on with a partial file (HTTP Range).
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pooch  # type: ignore[import-untyped, unused-ignore]
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from daedl_bench.datasets.archives import is_of_disk, raise_of_disk

ATTEMPTS = 3  # on a connection that is cut, chosen
TIMEOUT = 30.0  # seconds without a byte, chosen
BLOCK = 1 << 18  # bytes, chosen
FAILURES = (OSError, http.client.HTTPException)


def download(target: Path, urls: Sequence[str], md5: str) -> None:
    """Put the file with that checksum at `target`, from the first of `urls` that gives it."""
    failed = []
    for url in urls:
        try:
            _from(url, target, md5)
            return
        except (*FAILURES, ValueError) as error:
            raise_of_disk(error, f"cannot keep {target.name}", target.parent)
            failed.append(f"{url} ({error})")
    raise FileNotFoundError(
        f"{target.name} could not be downloaded from {', nor from '.join(failed)}; expected the file "
        f"with MD5 {md5}: check the connection and try again, or put the file at {target} yourself"
    )


def _from(url: str, target: Path, md5: str) -> None:
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    try:
        _retrieve(url, target, md5, part)
    except ValueError:
        if not resumed:
            raise
        # The partial file may have been of another file: once more, from the start.
        part.unlink(missing_ok=True)
        _retrieve(url, target, md5, part)


def _retrieve(url: str, target: Path, md5: str, part: Path) -> None:
    try:
        pooch.retrieve(url, f"md5:{md5}", target.name, target.parent, downloader=_Resuming(part))
    except ValueError as error:
        raise ValueError("refused: its checksum differs from the published one") from error


class _Resuming:
    """Downloads to `part`, going on where an earlier attempt stopped; moved away when it is whole."""

    def __init__(self, part: Path) -> None:
        self.part = part

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._go_on(url)
                break
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                self.part.unlink()  # it is longer than the file
            except FAILURES as error:
                if is_of_disk(error) or attempt == ATTEMPTS or not self.part.exists():
                    raise
        self.part.replace(output_file)

    def _go_on(self, url: str) -> None:
        done = self.part.stat().st_size if self.part.exists() else 0
        headers = {"User-Agent": "daedl"} | ({"Range": f"bytes={done}-"} if done else {})
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                done = 0  # a server that knows no ranges sends all of it
            rest = response.headers.get("Content-Length")
            total = done + int(rest) if rest and rest.isdecimal() else None
            with self.part.open("ab" if done else "wb") as file, _bar(self.part.stem) as bar:
                task = bar.add_task("", total=total, completed=done)
                while block := response.read(BLOCK):
                    file.write(block)
                    bar.advance(task, len(block))
        arrived = self.part.stat().st_size
        if total is not None and arrived < total:
            raise ConnectionError(f"the connection was cut after {arrived:,} of {total:,} bytes")


def _bar(name: str) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
