"""Lookup by name with suggestions for misspellings, discovery of classes, and dotted names."""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def look_up(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return `table[name]`; for an unknown name, the error lists the known ones and suggests one."""
    if name in table:
        return table[name]
    known = ", ".join(sorted(table))
    raise ValueError(f"unknown {kind} {name!r}: expected one of {known}{suggestion(name, table)}")


def suggestion(name: object, known: Iterable[str]) -> str:
    """The end of an error message that suggests the most similar of the `known` names, or ""."""
    spelt = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), spelt, n=1)
    return f"; did you mean {spelt[close[0]]!r}?" if close else ""


def names_or_numbers(names: Sequence[str] | None, number: int) -> list[str]:
    """Return `names` of classes; without names, the numbers below `number` as text."""
    return list(names) if names else [str(each) for each in range(number)]


def subclasses_in(package: str, paths: Iterable[str], base: type[T]) -> Iterator[type[T]]:
    """Public subclasses of `base` that the modules of a package define; imports these modules.

    A class that a module only imports belongs to the module that defines it.

    Arguments:
        package: `__name__` of the package.
        paths: `__path__` of the package.
        base: only its proper subclasses are returned.
    """
    for info in pkgutil.iter_modules(paths):
        module = importlib.import_module(f"{package}.{info.name}")
        for name, value in vars(module).items():
            if not isinstance(value, type) or not issubclass(value, base) or value is base:
                continue
            if value.__module__ == module.__name__ and not name.startswith("_"):
                yield value


def strip_prefix(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Select the entries whose names start with `prefix`, and remove it from their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
