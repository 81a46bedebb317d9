"""The table of results: measures down, methods across, for the terminal and the report alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable

from daedl.evaluate import Measured

DASH = "–"
# What a line shows: its name, and the fields of the row that it is read from.
CLASSIFICATION = (
    ("accuracy ↑", "classification", "labels", "accuracy"),
    ("Brier score ↓", "classification", "probs", "brier"),
    ("misclassification AUPR ↑", "misclassification", "aleatoric", "aupr"),
)
DETECTION = tuple(
    (f"{metric.upper()}, {score} ↑", "ood", score, metric)
    for metric in ("aupr", "auroc")
    for score in ("aleatoric", "epistemic")
)


@dataclass(frozen=True)
class Section:
    """Lines on one data set: the name of each, and its cell for each method."""

    title: str
    lines: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Table:
    """Figures times 100 as text, a column for each method."""

    title: str
    methods: tuple[str, ...]
    sections: tuple[Section, ...]

    def rich(self) -> RichTable:
        """The table for a terminal."""
        table = RichTable(title=self.title, title_justify="left")
        table.add_column("")
        for method in self.methods:
            table.add_column(method, justify="right")
        for section in self.sections:
            table.add_section()
            table.add_row(f"[bold]{section.title}[/bold]")
            for name, cells in section.lines:
                table.add_row(f"  {name}", *cells)
        return table


def tabulate(
    figures: Mapping[str, Mapping[str, Sequence[Measured]]],
    title: str,
    sections: Sequence[tuple[str, str]],
) -> Table:
    """The table of one run; `sections` pairs each data set, "test" first, with its title."""
    made = []
    for data, heading in sections:
        values = {
            method: {each[:3]: each.value for each in sets[data]}
            for method, sets in figures.items()
        }
        lines = tuple(
            (name, tuple(_cell(values[method].get(tuple(which))) for method in figures))
            for name, *which in (CLASSIFICATION if data == "test" else DETECTION)
        )
        made.append(Section(heading, lines))
    return Table(title, tuple(figures), tuple(made))


def _cell(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.2f}"
