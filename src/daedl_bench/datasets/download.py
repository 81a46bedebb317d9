"""Downloads with pooch, from the published address or a mirror, with an enforced checksum."""

from collections.abc import Sequence
from pathlib import Path

import pooch  # type: ignore[import-untyped, unused-ignore]
from tqdm import tqdm

from daedl_bench.datasets.archives import raise_disk_error

TIMEOUT = 30  # seconds without data, chosen
BLOCK = 1 << 18  # bytes per read, chosen


def download(target: Path, urls: Sequence[str], md5: str) -> None:
    """Download `target` from the first of `urls` that serves a file with this checksum.

    pooch writes to a temporary file, verifies it and moves it into place.
    """
    failures = []
    for url in urls:
        # With `disable=None` hidden where the output is no terminal.
        options = {"unit": "B", "unit_scale": True, "disable": None}
        bar = tqdm(desc=target.name, total=1, **options)  # pooch sets the total
        get = pooch.HTTPDownloader(progressbar=bar, chunk_size=BLOCK, timeout=TIMEOUT)
        try:
            with bar:
                pooch.retrieve(url, f"md5:{md5}", target.name, target.parent, downloader=get)
            return
        except (OSError, ValueError) as error:
            raise_disk_error(error, f"cannot write {target.name}", target.parent)
            failures.append(f"{url} ({error})")
    raise FileNotFoundError(
        f"cannot download {target.name} from {' or '.join(failures)}; expected the file with MD5 {md5}: "
        f"check the connection and try again, or put the file at {target}"
    )
