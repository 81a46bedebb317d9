"""Data sets by name: found under the data root, downloaded if they aren't there, read and checked."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from daedl.checks import DataWarning
from daedl.data.arrays import Pair
from daedl.data.images import ImageSet
from daedl.names import look_up
from daedl_bench.datasets import cifar, corrupted, idx, svhn
from daedl_bench.datasets.noise import noise
from daedl_bench.datasets.obtain import at_hand, obtain
from daedl_bench.datasets.root import data_root
from daedl_bench.datasets.sources import Source, Wanted, find, sources

# Each takes the files of a split and, where there are any, the severity.
READERS: Mapping[str, Callable[[Sequence[Path], int | None], Pair]] = MappingProxyType(
    {
        "idx": lambda paths, _: idx.read(*paths),
        "cifar": lambda paths, _: cifar.read(paths),
        "svhn": lambda paths, _: svhn.read(*paths),
        "npy": lambda paths, severity: corrupted.read(paths[0], paths[1], severity),
    }
)
# As CIFAR's images, and as MNIST's.
NOISES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"noise": (3, 32, 32), "noise-grey": (1, 28, 28)}
)
NOISE_SEEDS: Mapping[str, int] = MappingProxyType({"test": 0, "train": 1})


def available() -> tuple[str, ...]:
    """Every name that `load` knows, whether its files are there or not."""
    return (*(name for source in sources().values() for name in source.names()), *NOISES)


def present(name: str, split: str = "test", root: str | Path | None = None) -> bool:
    """Whether `load` can do without a download: the files are there, or the archive that should hold them."""
    if name in NOISES:
        return split in NOISE_SEEDS
    wanted, folder = find(name, sources()), data_root(root)
    return all(at_hand(wanted.source, file, folder) for file in wanted.files(split))


def corrupted_sets(family: str) -> Mapping[str, Sequence[str]]:
    """Names of all corruptions of "mnist-c" or "cifar10-c", by what they are averaged over.

    {"cifar10-c/1": ["cifar10-c/fog/1", ...], ...}; empty for a name that is no such family.
    """
    source = sources().get(family)
    return source.groups() if source and source.variants else {}


def load(
    name: str,
    split: str = "test",
    root: str | Path | None = None,
    download: bool = True,
    *,
    table: Mapping[str, Source] | None = None,
) -> ImageSet:
    """The data set `name`, one of `available()`.

    Args:
        split: "train" or "test".
        root: the folder with the data; by default `data_root()`.
        download: whether files that aren't there may be downloaded; else they are an error that says
            which file to put where.
        table: data sets by name; by default those of sets.toml.

    Local files are used as they are: one whose checksum is not the published one gets a `DataWarning`, but
    one that was published as another file, such as the labels of another set, is an error. Corruptions
    that were made by `daedl data corrupt` get a `DataWarning` too.
    """
    table = sources() if table is None else table
    look_up({**table, **NOISES}, name.partition("/")[0], "data set")
    if name in NOISES:
        seed = look_up(NOISE_SEEDS, split, f"split of {name}")
        return noise(NOISES[name], seed=seed, split=split)
    wanted, folder = find(name, table), data_root(root)
    source = wanted.source
    paths = obtain(wanted, split, folder, download)
    images, labels = READERS[source.format](paths, wanted.severity)
    if tuple(images.shape[1:]) != source.shape:
        raise ValueError(
            f"images in {paths[0]} have shape {tuple(images.shape[1:])}; expected {source.shape}, that of "
            f"{name}: look for a file of another set"
        )
    try:
        loaded = ImageSet(images, labels, name, split, source.class_names)
    except ValueError as error:
        # Of two files the second holds the labels; CIFAR's batches hold some each.
        labelled = paths[1:] if len(paths) == 2 else paths
        raise ValueError(f"{', '.join(map(str, labelled))}: {error}") from error
    _require_own_labels(source, loaded, paths[-1], table)
    if source.variants:  # single files of the corrupted sets have no published checksum
        return replace(loaded, made=_was_made(wanted, folder))
    _require_no_others(source, paths, folder, table)
    return loaded


def _require_own_labels(
    source: Source, loaded: ImageSet, path: Path, table: Mapping[str, Source]
) -> None:
    """Raise if the labels are those of another set or split."""
    digest = hashlib.md5(loaded.labels.byte().numpy().data, usedforsecurity=False).hexdigest()
    if digest == source.labels.get(loaded.split):
        return
    for each in table.values():
        for split in (split for split, md5 in each.labels.items() if md5 == digest):
            raise ValueError(
                f"{path} holds the labels of {each.name} ({split}); expected those of {loaded.name} "
                f"({loaded.split}): put the right file there, or remove it to have it downloaded"
            )


def _was_made(wanted: Wanted, root: Path) -> bool:
    """Whether a corruption was made here; then there is a warning too."""
    home = root / Path(wanted.files("test")[0]).parts[0]
    made = corrupted.was_made(home, wanted.variant)
    if made:
        warnings.warn(
            f"{home} holds corruptions made by `daedl data corrupt`; expected those of "
            f"{wanted.source.name} as published, which differ from them (docs/corruptions.md says where): "
            "compare figures with published ones with care",
            DataWarning,
            stacklevel=3,
        )
    return made


def _require_no_others(
    source: Source, paths: Sequence[Path], root: Path, table: Mapping[str, Source]
) -> None:
    """Raise if a file was published under another name; warn if it wasn't published at all."""
    names = {md5: name for each in table.values() for name, md5 in each.md5.items()}
    others = []
    for path in paths:
        name, md5 = path.relative_to(root).as_posix(), _md5(path)
        if md5 == source.md5.get(name):
            continue
        if md5 in names:
            raise ValueError(
                f"{path} is the file that was published as {names[md5]}; expected {name} of "
                f"{source.name}: put the right file there, or remove it to have it downloaded"
            )
        if name in source.md5:
            others.append(str(path))
    if others:
        warnings.warn(
            f"{', '.join(others)}: read without complaint, but the checksum is not the published one; "
            f"expected {source.name} as published: remove the file to have it downloaded, or compare "
            "figures with care",
            DataWarning,
            stacklevel=3,
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
