"""The table of data sets, read from sets.toml, and what a name such as "cifar10-c/fog/3" stands for."""

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from daedl.names import look_up


@dataclass(frozen=True)
class Source:
    """One row of sets.toml, which explains the fields; paths are relative to the data root."""

    name: str
    format: str
    shape: tuple[int, int, int]
    remote: str
    urls: tuple[str, ...]
    class_names: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    md5: Mapping[str, str]
    variants: tuple[str, ...] = ()
    severities: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Every name that `find` knows for this source."""
        if not self.variants:
            return [self.name]
        whole = [f"{self.name}/{variant}" for variant in self.variants]
        steps = range(1, self.severities + 1)
        return whole + [f"{name}/{step}" for name, step in itertools.product(whole, steps)]

    def groups(self) -> dict[str, list[str]]:
        """The names of all corruptions, by severity where there are several: what is averaged over."""
        if not self.severities:
            return {self.name: [f"{self.name}/{variant}" for variant in self.variants]}
        return {
            f"{self.name}/{step}": [f"{self.name}/{variant}/{step}" for variant in self.variants]
            for step in range(1, self.severities + 1)
        }

    def remote_of(self, file: str) -> str:
        """The path of the download that is `file`, or that holds it."""
        return self.remote.replace("{file}", file)

    def urls_of(self, remote: str) -> tuple[str, ...]:
        """The addresses of a download."""
        name = PurePosixPath(remote).name
        return tuple(url.replace("{name}", name) for url in self.urls)

    def all_files(self) -> list[str]:
        """Every file of every split and variant, once."""
        templates = itertools.chain.from_iterable(self.splits.values())
        variants = self.variants or ("",)
        pairs = itertools.product(templates, variants)
        return list(dict.fromkeys(path.replace("{variant}", variant) for path, variant in pairs))


@dataclass(frozen=True)
class Wanted:
    """What a name stands for: a source and, of a corrupted one, the corruption and its severity."""

    source: Source
    variant: str = ""
    severity: int | None = None
    name: str = field(default="", compare=False)

    def files(self, split: str) -> tuple[str, ...]:
        """The files of `split`, as the reader takes them."""
        templates = look_up(self.source.splits, split, f"split of {self.source.name}")
        return tuple(path.replace("{variant}", self.variant) for path in templates)


@cache
def sources() -> Mapping[str, Source]:
    """Sources by name."""
    table = tomllib.loads(files(__package__).joinpath("sets.toml").read_text("utf-8"))
    return MappingProxyType({name: _source(name, row) for name, row in table.items()})


def find(name: str, table: Mapping[str, Source]) -> Wanted:
    """What `name` stands for: "mnist", "mnist-c/fog", "cifar10-c/fog" (all severities), "cifar10-c/fog/3"."""
    first, *rest = name.split("/")
    source = look_up(table, first, "data set")
    known = dict.fromkeys(source.variants)
    if not source.variants and rest:
        raise ValueError(
            f"unknown data set {name!r}: {first} has no variants; did you mean {first!r}?"
        )
    if not source.variants:
        return Wanted(source, name=name)
    if not rest:
        raise ValueError(
            f"{name!r} names {len(known)} data sets; expected one corruption of it, such as "
            f"{first}/{source.variants[0]}: choose among {', '.join(known)}"
        )
    look_up(known, rest[0], f"corruption of {first}")
    if len(rest) == 1:
        return Wanted(source, rest[0], name=name)
    steps = {str(step): step for step in range(1, source.severities + 1)}
    if not steps or len(rest) > 2:
        raise ValueError(
            f"unknown data set {name!r}: nothing follows {'/'.join((first, *rest[: 1 + bool(steps)]))}; "
            f"expected a name such as {source.names()[-1]}"
        )
    return Wanted(source, rest[0], look_up(steps, rest[1], "severity"), name)


def _source(name: str, row: Mapping[str, Any]) -> Source:
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    plain["splits"] = MappingProxyType({key: tuple(paths) for key, paths in row["splits"].items()})
    plain |= {key: MappingProxyType(row.get(key, {})) for key in ("md5", "labels")}
    return Source(name=name, **plain)
