"""Generation of corrupted datasets in the published layout."""

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from daedl.data.arrays import read_npy
from daedl.data.images import ImageSet
from daedl.names import look_up
from daedl.storage import require_folder, write_atomically
from daedl_bench.corruptions import FAMILIES, Family, corrupt, require_images, stands_in
from daedl_bench.datasets.sources import select, sources

Levels = npt.NDArray[np.uint8]
RECORD = "generated.json"  # next to the corruptions: which of them were generated, from which images and seed
STEP = 500  # images between two updates of the progress bar, chosen


def generate(
    clean: ImageSet,
    folder: Path,
    family: str,
    names: Sequence[str] = (),
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write corruptions of a test set below `folder`, in the layout of the published datasets.

    MNIST-C: mnist_c/<corruption>/test_images.npy (N, 28, 28, 1) and test_labels.npy (N,).
    CIFAR-10-C: CIFAR-10-C/<corruption>.npy (5N, 32, 32, 3), the mildest severity first, and labels.npy
    (5N,). All are uint8. Files are written atomically; existing ones, published or generated, are kept, so
    that an interrupted run continues where it stopped. generated.json lists the generated corruptions, and
    those that were drawn because published photographs were missing, which `load` rejects.

    Args:
        clean: the test set of MNIST or CIFAR-10.
        folder: the data root; created if it does not exist.
        family: "mnist-c" or "cifar10-c".
        names: corruptions; by default all of the family.
        seed: passed to `corrupt`.
        progress: whether to show a progress bar.

    Returns:
        The folder of the dataset.
    """
    kind = look_up(FAMILIES, family, "family of corruptions")
    for name in names:
        look_up(kind.corruptions, name, f"corruption of {kind.title}")
    require_images(clean.images, kind)
    chosen = dict.fromkeys(names or kind.corruptions)
    files = {
        name: [folder / each for each in select(f"{family}/{name}", sources()).files("test")]
        for name in chosen
    }
    labels = np.tile(clean.labels.numpy().astype(np.uint8), kind.severities)
    home = folder / next(iter(files.values()))[0].relative_to(folder).parts[0]
    require_folder(home)
    _record(
        home, clean.images, family, seed
    )  # raises before any work if an existing record differs
    for images_file, labels_file in files.values():
        _require_shape(images_file, (len(labels), kind.side, kind.side, kind.channels))
        _require_equal(labels_file, labels)
    missing = [name for name, (images_file, _) in files.items() if not images_file.exists()]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), disable=not progress) as bar:
        task = bar.add_task(kind.title, total=len(missing) * len(labels))
        for name, (images_file, labels_file) in files.items():
            require_folder(images_file.parent)
            if not labels_file.exists():  # before the images, which complete the corruption
                write_atomically(labels_file, _npy(labels))
            if name not in missing:
                continue
            bar.update(task, description=f"{kind.title} {name}")
            levels = _corrupted(clean.images, name, kind, seed, lambda n: bar.advance(task, n))
            # Concurrent runs may generate other corruptions of the same dataset.
            with FileLock(home / f".{RECORD}.lock"):
                record = _record(home, clean.images, family, seed)
                record["names"] = sorted({*record["names"], name})
                others = {*record["drawn"]} - {name}
                record["drawn"] = sorted({*others, name} if stands_in(name) else others)
                write_atomically(home / RECORD, (json.dumps(record, indent=2) + "\n").encode())
            write_atomically(images_file, _npy(levels))
    return home


def was_generated(home: Path, name: str, kind: Literal["names", "drawn"] = "names") -> bool:
    """Whether the record in the folder of a dataset lists the corruption `name`, generated or drawn."""
    try:
        return name in json.loads((home / RECORD).read_text("utf-8"))[kind]
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no record, or a damaged one, which `generate` reports


def _corrupted(
    images: Tensor, name: str, kind: Family, seed: int, advance: Callable[[int], None]
) -> Levels:
    """All severities of one corruption (S · N, H, W, C), in ascending order."""
    parts = []
    for severity in range(1, kind.severities + 1):
        for first in range(0, len(images), STEP):
            part = corrupt(images[first : first + STEP], name, severity, kind.name, seed, first)
            parts.append(part.permute(0, 2, 3, 1).numpy())
            advance(len(part))
    return np.concatenate(parts)


def _require_shape(file: Path, shape: tuple[int, ...]) -> None:
    """Raise if `file` exists and does not hold uint8 of `shape`."""
    content = read_npy(file) if file.exists() else None  # mapped: CIFAR-10-C has files of 150 MB
    if content is not None and (content.shape != shape or content.dtype != np.uint8):
        raise ValueError(
            f"{file} holds {content.dtype} of shape {content.shape}; expected uint8 of shape {shape} for "
            "these images: move it away, or choose another folder"
        )


def _require_equal(file: Path, labels: Levels) -> None:
    """Raise if `file` exists and holds other labels."""
    if file.exists() and not np.array_equal(read_npy(file), labels):
        raise ValueError(
            f"{file} holds other labels; expected the labels of the test set, repeated for each severity: "
            "move it away, or choose another folder"
        )


def _record(home: Path, images: Tensor, family: str, seed: int) -> dict[str, Any]:
    """The existing record or a new one; raise if the existing one has another seed or other images."""
    digest = hashlib.sha256(images.contiguous().numpy().data).hexdigest()
    ours: dict[str, Any] = {"family": family, "seed": seed, "images": digest}
    new = {**ours, "daedl": version("daedl"), "names": [], "drawn": []}
    file = home / RECORD
    if not file.exists():
        return new
    try:
        existing = json.loads(file.read_text("utf-8"))
        theirs = {key: existing[key] for key in ours}
        names = [str(name) for name in existing["names"]]
        drawn = [str(name) for name in existing.get("drawn", [])]
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
    return {**new, "names": names, "drawn": drawn}


def _npy(array: Levels) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
