"""The paper's result tables, to stand beside what is measured here."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from daedl.names import look_up


@dataclass(frozen=True)
class Cell:
    """A published figure: mean and standard deviation over five runs, times 100."""

    mean: float
    deviation: float

    @classmethod
    def parse(cls, text: str) -> "Cell | None":
        """From "99.90 ± 0.0"; None from "-", where the paper gives no figure."""
        if text == "-":
            return None
        mean, _, deviation = text.partition(" ± ")
        return cls(float(mean), float(deviation))


@dataclass(frozen=True)
class Column:
    """What a column measures; `ood` is None for a figure of the in-distribution test set."""

    id: str
    task: str
    score: str
    metric: str
    ood: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """One table: `rows` hold a cell a column, by method; `label` is the table's in the paper's source."""

    name: str
    title: str
    label: str
    columns: tuple[Column, ...]
    rows: dict[str, tuple[Cell | None, ...]]


def tables() -> dict[str, PaperTable]:
    """Every result table of the paper, by name."""
    content = tomllib.loads((files("daedl_bench") / "paper.toml").read_text("utf-8"))
    found = {}
    for entry in content["table"]:
        columns = tuple(Column(**column) for column in entry["columns"])
        rows = {row["method"]: tuple(map(Cell.parse, row["cells"])) for row in entry["rows"]}
        found[entry["name"]] = PaperTable(
            entry["name"], entry["title"], entry["label"], columns, rows
        )
    return found


def table(name: str) -> PaperTable:
    """The table of this name."""
    return look_up(tables(), name, "table of the paper")
