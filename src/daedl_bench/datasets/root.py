"""Where data lie: one folder, laid out as torchvision lays it out."""

import os
from pathlib import Path

import pooch  # type: ignore[import-untyped, unused-ignore]

from daedl.storage import expanded

VARIABLE = "DAEDL_DATA"


def data_root(root: str | Path | None = None) -> Path:
    """`root` if given, else the folder that DAEDL_DATA names, else the user's cache folder."""
    given = root or os.environ.get(VARIABLE)
    folder = expanded(given) if given else Path(pooch.os_cache("daedl"))
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            f"the data root {folder} is a file; expected a folder: pass another one, or set {VARIABLE}"
        )
    return folder
