"""Names: looking one up in a table, with a suggestion when it is misspelt; and parts of dotted ones."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def look_up(table: Mapping[str, T], name: str, kind: str) -> T:
    """`table[name]`; for an unknown name, say which ones exist and which was probably meant."""
    if name in table:
        return table[name]
    spelt = {known.lower(): known for known in table}
    close = difflib.get_close_matches(str(name).lower(), spelt, n=1)
    hint = f"; did you mean {spelt[close[0]]!r}?" if close else ""
    raise ValueError(f"unknown {kind} {name!r}: expected one of {', '.join(sorted(table))}{hint}")


def below(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The values whose names begin with `prefix`, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
