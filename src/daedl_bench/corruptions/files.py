"""Writing corrupted sets in the published layout."""

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
from daedl.names import look_up
from daedl.storage import require_folder, write_atomically
from daedl_bench.corruptions.apply import corrupt, require_images
from daedl_bench.corruptions.table import FAMILIES, MNIST_C, Family
from daedl_bench.datasets.corrupted import RECORD

Levels = npt.NDArray[np.uint8]
_STEP = 500  # images between two moves of the progress bar (chosen)


def generate(
    images: Tensor,
    labels: Tensor,
    folder: Path,
    family: str,
    names: Sequence[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write corruptions of a test set below `folder`, laid out like the published sets.

    MNIST-C: mnist_c/<corruption>/test_images.npy (N, 28, 28, 1) and test_labels.npy (N,).
    CIFAR-10-C: CIFAR-10-C/<corruption>.npy (5N, 32, 32, 3), the mildest severity first, and labels.npy
    (5N,). All are uint8. A file is there whole or not at all; those that exist, the published ones
    too, are kept, so that a run that was interrupted goes on where it stopped. generated.json beside
    them says which corruptions were made here, from which images and seed.

    Args:
        images: (N, C, H, W) uint8, as `corrupt` takes them.
        labels: (N,) whole numbers from 0 to 255.
        folder: the data root; created if need be.
        family: "mnist-c" or "cifar10-c".
        names: of the corruptions; all of the family if None.
        seed: of `corrupt`.
        progress: show a progress bar.

    Returns:
        The folder of the set.
    """
    kind = look_up(FAMILIES, family, "family of corruptions")
    chosen = _chosen(names, kind)
    require_images(images, kind)
    _require_labels(labels, images)
    home = Path(folder) / kind.folder
    require_folder(home)
    _record(home, images, family, seed)  # before anything is made, it raises if they don't fit
    severities = len(next(iter(kind.corruptions.values())).severities)
    repeated = np.tile(labels.cpu().to(torch.uint8).numpy(), severities)
    missing = [name for name in chosen if not _finished(home, name, kind, repeated)]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task(kind.title, total=len(missing) * len(repeated))
        for name in missing:
            bar.update(task, description=f"{kind.title} {name}")
            made = _made(images, name, family, seed, lambda count: bar.advance(task, count))
            # Another run may make others side by side: each adds to what is recorded by now.
            with FileLock(home / f".{RECORD}.lock"):
                record = _record(home, images, family, seed)
                record["names"] = sorted({*record["names"], name})
                write_atomically(home / RECORD, (json.dumps(record, indent=2) + "\n").encode())
            _write(home, name, kind, made, repeated)
    return home


def _made(
    images: Tensor, name: str, family: str, seed: int, advance: Callable[[int], None]
) -> Levels:
    """All severities (S · N, H, W, C) of one corruption."""
    kind = FAMILIES[family]
    severities = kind.corruptions[name].severities
    made = np.empty(
        (len(severities) * len(images), kind.side, kind.side, kind.channels), dtype=np.uint8
    )
    for severity in severities:
        for first in range(0, len(images), _STEP):
            part = corrupt(images[first : first + _STEP], name, severity, family, seed, first)
            start = (severity - 1) * len(images) + first
            made[start : start + len(part)] = part.permute(0, 2, 3, 1).cpu().numpy()
            advance(len(part))
    return made


def _paths(home: Path, name: str, kind: Family) -> tuple[Path, Path]:
    """The files of the images and of the labels of a corruption."""
    if kind is MNIST_C:
        return home / name / "test_images.npy", home / name / "test_labels.npy"
    return home / f"{name}.npy", home / "labels.npy"


def _finished(home: Path, name: str, kind: Family, labels: Levels) -> bool:
    """Whether the files of a corruption are there; raise if they are not what would be written."""
    images_file, labels_file = _paths(home, name, kind)
    there = _holds(images_file, (len(labels), kind.side, kind.side, kind.channels), None)
    if not _holds(labels_file, labels.shape, labels) and there:
        # Images without labels are somebody's: they are kept, and get labels.
        write_atomically(labels_file, _npy(labels))
    return there


def _write(home: Path, name: str, kind: Family, made: Levels, labels: Levels) -> None:
    """Write the files of a corruption, the images last: where they are, all is."""
    images_file, labels_file = _paths(home, name, kind)
    require_folder(images_file.parent)
    if not labels_file.exists():
        write_atomically(labels_file, _npy(labels))
    write_atomically(images_file, _npy(made))


def _holds(file: Path, shape: tuple[int, ...], values: Levels | None) -> bool:
    """Whether `file` exists; raise unless it then holds uint8 of `shape`, and `values` if given."""
    if not file.exists():
        return False
    advice = "move it away, or choose another folder"
    try:
        # Mapped, not read: 150 MB a file of CIFAR-10-C. A file cut short does not get through.
        found = np.lib.format.open_memmap(file, mode="r")
    # A damaged header can fail anywhere in NumPy's reader, which runs nothing of it.
    except Exception as error:
        raise ValueError(
            f"{file} is no whole .npy file ({error}); expected uint8 of shape {shape}: {advice}"
        ) from error
    if found.shape != shape or (values is None and found.dtype != np.uint8):
        raise ValueError(
            f"{file} holds {found.dtype} of shape {found.shape}; expected uint8 of shape {shape} for "
            f"these images: {advice}"
        )
    if values is not None and not np.array_equal(found, values):
        raise ValueError(
            f"{file} holds other labels than those that were passed; expected the same, for each "
            f"severity in turn: pass the labels of that set, or {advice}"
        )
    return True


def _record(home: Path, images: Tensor, family: str, seed: int) -> dict[str, Any]:
    """What generated.json is to say; raise if it speaks of another seed or other images."""
    digest = hashlib.sha256(images.cpu().contiguous().numpy().data).hexdigest()
    ours: dict[str, Any] = {
        "family": family,
        "seed": seed,
        "images": digest,
        "daedl": version("daedl"),
        "names": [],
    }
    file = home / RECORD
    if not file.exists():
        return ours
    try:
        theirs = json.loads(file.read_text("utf-8"))
        same = all(theirs[key] == ours[key] for key in ("family", "seed", "images"))
        names = [str(name) for name in theirs["names"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is damaged ({error!r}); expected the record of how the corruptions beside it "
            "were made: move the folder away and make them again"
        ) from error
    if not same:
        raise ValueError(
            f"{home} holds corruptions of family {theirs['family']}, seed {theirs['seed']}, images "
            f"{str(theirs['images'])[:8]}; expected {family}, {seed}, {digest[:8]}, because a set is "
            "made from one seed and the same images: choose another folder, or pass the same"
        )
    return {**ours, "names": names}


def _chosen(names: Sequence[str] | None, kind: Family) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"names are the string {names!r}; expected a list: pass [{names!r}]")
    chosen = list(dict.fromkeys(kind.corruptions if names is None else names))
    for name in chosen:
        look_up(kind.corruptions, name, f"corruption of {kind.title}")
    return chosen


def _require_labels(labels: Tensor, images: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.dtype not in LABEL_TYPES:
        arrived = labels.dtype if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
        raise TypeError(
            f"labels are {arrived}; expected a tensor of whole numbers: convert with "
            "torch.as_tensor(labels).long()"
        )
    if tuple(labels.shape) != (len(images),) or len(images) == 0:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)} for {len(images)} images; expected one label an "
            "image, and at least one: pass images and labels of the same set"
        )
    if int(labels.min()) < 0 or int(labels.max()) > 255:
        raise ValueError(
            f"labels run from {int(labels.min())} to {int(labels.max())}; the published layout has room "
            "for 0 to 255: pass class indices"
        )


def _npy(array: Levels) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
