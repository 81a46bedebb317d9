"""The datasets in sets.toml, and names such as "cifar10-c/fog/3" for parts of them."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from types import MappingProxyType

import msgspec

from daedl.names import look_up
from daedl_bench.corruptions import FAMILIES


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of sets.toml, where the fields are explained; paths are relative to the data root."""

    format: str
    shape: tuple[int, int, int]
    remote: str
    urls: tuple[str, ...]
    class_names: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]
    md5: dict[str, str]
    labels: dict[str, str] = {}
    name: str = ""

    @property
    def variants(self) -> tuple[str, ...]:
        """The corruptions of a corrupted dataset, in alphabetical order."""
        return tuple(sorted(FAMILIES[self.name].corruptions)) if self.name in FAMILIES else ()

    @property
    def severities(self) -> range:
        """The severities in each file; empty if there is only one."""
        count = FAMILIES[self.name].severities if self.variants else 0
        return range(1, count + 1) if count > 1 else range(0)

    def names(self) -> list[str]:
        """All names that `select` accepts for this source."""
        if not self.variants:
            return [self.name]
        whole = [f"{self.name}/{variant}" for variant in self.variants]
        return whole + [f"{name}/{s}" for name, s in itertools.product(whole, self.severities)]

    def groups(self) -> dict[str, list[str]]:
        """Names of all corruptions, grouped by severity if there are several."""
        if not self.severities:
            return {self.name: self.names()}
        return {
            f"{self.name}/{s}": [f"{self.name}/{variant}/{s}" for variant in self.variants]
            for s in self.severities
        }

    def remote_of(self, file: str) -> str:
        """Path of the download that is `file`, possibly gzipped, or that contains it."""
        return self.remote.replace("{file}", file)

    def is_archived(self, file: str) -> bool:
        """Whether the download of `file` is an archive."""
        return self.remote_of(file) not in (file, f"{file}.gz")

    def urls_of(self, remote: str) -> tuple[str, ...]:
        """Addresses of a download."""
        name = PurePosixPath(remote).name
        return tuple(url.replace("{name}", name) for url in self.urls)

    def all_files(self) -> list[str]:
        """All files of all splits and variants, without duplicates."""
        templates = itertools.chain.from_iterable(self.splits.values())
        pairs = itertools.product(templates, self.variants or ("",))
        return list(dict.fromkeys(path.replace("{variant}", variant) for path, variant in pairs))


@dataclass(frozen=True)
class Selection:
    """A source, with the corruption and the severity if it is a corrupted one."""

    name: str
    source: Source
    variant: str = ""
    severity: int | None = None

    def files(self, split: str) -> tuple[str, ...]:
        """The files of `split`, in the order that the reader expects."""
        templates = look_up(self.source.splits, split, f"split of {self.source.name}")
        return tuple(path.replace("{variant}", self.variant) for path in templates)


@cache
def sources() -> Mapping[str, Source]:
    """The entries of sets.toml by name."""
    content = files(__package__).joinpath("sets.toml").read_bytes()
    table = msgspec.toml.decode(content, type=dict[str, Source])
    return MappingProxyType(
        {name: msgspec.structs.replace(source, name=name) for name, source in table.items()}
    )


def select(name: str, table: Mapping[str, Source]) -> Selection:
    """Parse "mnist", "mnist-c/fog", "cifar10-c/fog" (all severities) or "cifar10-c/fog/3"."""
    first, *rest = name.split("/")
    source = look_up(table, first, "dataset")
    if rest and source.variants:
        look_up(dict.fromkeys(source.variants), rest[0], f"corruption of {first}")
    if name not in source.names():
        parts = (
            first + "/CORRUPTION" * bool(source.variants) + "[/SEVERITY]" * bool(source.severities)
        )
        raise ValueError(
            f"unknown dataset {name!r}; expected {parts}: pass a name such as {source.names()[-1]!r}"
        )
    return Selection(name, source, "".join(rest[:1]), int(rest[1]) if rest[1:] else None)
