"""The paper's result tables, transcribed for comparison with the measured figures."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Published:
    """A figure of the paper: mean and standard deviation over five runs, times 100."""

    mean: float
    deviation: float

    @classmethod
    def parse(cls, text: str) -> "Published | None":
        """Parse "99.90 ± 0.0"; None for "-", where the paper has no figure."""
        if text == "-":
            return None
        mean, _, deviation = text.partition(" ± ")
        return cls(float(mean), float(deviation))


@dataclass(frozen=True)
class Column:
    """What a column measures.

    Attributes:
        id: the in-distribution dataset.
        ood: the OOD dataset; None for a figure of the in-distribution test set.
    """

    id: str
    task: str
    score: str
    metric: str
    ood: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """One table: `rows` hold one figure per column, by method."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: dict[str, tuple[Published | None, ...]]


def tables() -> dict[str, PaperTable]:
    """Every result table of the paper, by name."""
    content = tomllib.loads((files(__package__) / "paper.toml").read_text("utf-8"))
    return {entry["name"]: _table(**entry) for entry in content["table"]}


def _table(columns: list[dict[str, str]], rows: list[dict[str, Any]], **names: str) -> PaperTable:
    figures = {row["method"]: tuple(map(Published.parse, row["cells"])) for row in rows}
    return PaperTable(**names, columns=tuple(Column(**each) for each in columns), rows=figures)
