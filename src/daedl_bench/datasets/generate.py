"""Generation of corrupted datasets in the published layout."""

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from daedl.checks import LABEL_TYPES
from daedl.data.arrays import read_npy
from daedl.names import look_up
from daedl.storage import require_folder, write_atomically
from daedl_bench.corruptions import FAMILIES, Family, corrupt, require_images
from daedl_bench.datasets.sources import select, sources

Levels = npt.NDArray[np.uint8]
RECORD = "generated.json"  # next to the corruptions: which of them were generated, from which images and seed
STEP = 500  # images between two updates of the progress bar, chosen


def generate(
    images: Tensor,
    labels: Tensor,
    folder: Path,
    family: str,
    names: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write corruptions of a test set below `folder`, in the layout of the published datasets.

    MNIST-C: mnist_c/<corruption>/test_images.npy (N, 28, 28, 1) and test_labels.npy (N,).
    CIFAR-10-C: CIFAR-10-C/<corruption>.npy (5N, 32, 32, 3), the mildest severity first, and labels.npy
    (5N,). All are uint8. Files are written atomically; existing ones, published or generated, are kept, so
    that an interrupted run continues where it stopped. generated.json lists the generated corruptions.

    Args:
        images: (N, C, H, W) uint8, as in `corrupt`.
        labels: (N,) integers from 0 to 255.
        folder: the data root; created if it does not exist.
        family: "mnist-c" or "cifar10-c".
        names: corruptions; by default all of the family.
        seed: passed to `corrupt`.
        progress: whether to show a progress bar.

    Returns:
        The folder of the dataset.
    """
    kind = look_up(FAMILIES, family, "family of corruptions")
    chosen = _chosen(names, kind)
    require_images(images, kind)
    _require_labels(labels, images)
    home = folder / Path(_files(family, chosen[0])[0]).parts[0]
    require_folder(home)
    _record(home, images, family, seed)  # raises before any work if an existing record differs
    repeated = np.tile(labels.cpu().to(torch.uint8).numpy(), kind.severities)
    missing = [name for name in chosen if not _finished(folder, name, family, repeated)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), disable=not progress) as bar:
        task = bar.add_task(kind.title, total=len(missing) * len(repeated))
        for name in missing:
            bar.update(task, description=f"{kind.title} {name}")
            levels = _corrupted(images, name, kind, seed, lambda count: bar.advance(task, count))
            # Concurrent runs may generate other corruptions of the same dataset.
            with FileLock(home / f".{RECORD}.lock"):
                record = _record(home, images, family, seed)
                record["names"] = sorted({*record["names"], name})
                write_atomically(home / RECORD, (json.dumps(record, indent=2) + "\n").encode())
            _write(folder, _files(family, name), levels, repeated)
    return home


def _chosen(names: Sequence[str] | None, kind: Family) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"names are the string {names!r}; expected a list: pass [{names!r}]")
    chosen = list(dict.fromkeys(kind.corruptions if names is None else names))
    if not chosen:
        raise ValueError("names are empty; expected at least one corruption: pass None for all")
    for name in chosen:
        look_up(kind.corruptions, name, f"corruption of {kind.title}")
    return chosen


def was_generated(home: Path, name: str) -> bool:
    """Whether the record in the folder of a dataset lists the corruption `name`."""
    try:
        return name in json.loads((home / RECORD).read_text("utf-8"))["names"]
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no record, or a damaged one, which `generate` reports


def _files(family: str, name: str) -> tuple[str, ...]:
    """Paths of the images and the labels of a corruption below the data root."""
    return select(f"{family}/{name}", sources()).files("test")


def _corrupted(
    images: Tensor, name: str, kind: Family, seed: int, advance: Callable[[int], None]
) -> Levels:
    """All severities of one corruption (S · N, H, W, C), in ascending order."""
    parts = []
    for severity in range(1, kind.severities + 1):
        for first in range(0, len(images), STEP):
            part = corrupt(images[first : first + STEP], name, severity, kind.name, seed, first)
            parts.append(part.permute(0, 2, 3, 1).cpu().numpy())
            advance(len(part))
    return np.concatenate(parts)


def _finished(folder: Path, name: str, family: str, labels: Levels) -> bool:
    """Whether the files of a corruption exist; raise if they differ from what would be written."""
    images_file, labels_file = (folder / file for file in _files(family, name))
    kind = FAMILIES[family]
    exists = _holds(images_file, (len(labels), kind.side, kind.side, kind.channels), None)
    if not _holds(labels_file, labels.shape, labels) and exists:
        write_atomically(labels_file, _npy(labels))
    return exists


def _write(folder: Path, files: Sequence[str], images: Levels, labels: Levels) -> None:
    """Write the labels, then the images: if the images exist, the corruption is complete."""
    images_file, labels_file = (folder / file for file in files)
    require_folder(images_file.parent)
    if not labels_file.exists():
        write_atomically(labels_file, _npy(labels))
    write_atomically(images_file, _npy(images))


def _holds(file: Path, shape: tuple[int, ...], values: Levels | None) -> bool:
    """Whether `file` exists; raise if it does not hold uint8 of `shape`, or `values` if given."""
    if not file.exists():
        return False
    content = read_npy(file)  # mapped: a file of CIFAR-10-C has 150 MB
    advice = "move it away, or choose another folder"
    if content.shape != shape or (values is None and content.dtype != np.uint8):
        raise ValueError(
            f"{file} holds {content.dtype} of shape {content.shape}; expected uint8 of shape {shape} for "
            f"these images: {advice}"
        )
    if values is not None and not np.array_equal(content, values):
        raise ValueError(
            f"{file} holds other labels; expected the given labels, repeated for each severity: pass the "
            f"labels of that dataset, or {advice}"
        )
    return True


def _record(home: Path, images: Tensor, family: str, seed: int) -> dict[str, Any]:
    """The existing record or a new one; raise if the existing one has another seed or other images."""
    digest = hashlib.sha256(images.cpu().contiguous().numpy().data).hexdigest()
    ours: dict[str, Any] = {"family": family, "seed": seed, "images": digest}
    new = {**ours, "daedl": version("daedl"), "names": []}
    file = home / RECORD
    if not file.exists():
        return new
    try:
        existing = json.loads(file.read_text("utf-8"))
        theirs = {key: existing[key] for key in ours}
        names = [str(name) for name in existing["names"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is damaged ({error!r}); expected the record of how the corruptions in this folder "
            "were generated: move the folder away and generate them again"
        ) from error
    if theirs != ours:
        raise ValueError(
            f"{home} holds corruptions with {theirs}; expected {ours}, because one dataset has one seed and "
            "the same images: choose another folder, or pass the same seed and images"
        )
    return {**new, "names": names}


def _require_labels(labels: Tensor, images: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.dtype not in LABEL_TYPES:
        arrived = labels.dtype if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
        raise TypeError(
            f"labels are {arrived}; expected a tensor of integers: convert with "
            "torch.as_tensor(labels).long()"
        )
    if tuple(labels.shape) != (len(images),) or len(images) == 0:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)} for {len(images)} images; expected one label per "
            "image, and at least one: pass images and labels of the same dataset"
        )
    if int(labels.min()) < 0 or int(labels.max()) > 255:
        raise ValueError(
            f"labels range from {int(labels.min())} to {int(labels.max())}; expected 0 to 255, as the "
            "published layout stores bytes: pass class indices"
        )


def _npy(array: Levels) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
