"""Compare the transcribed tables cell by cell with the paper's LaTeX source.

    python benchmarks/check_paper.py path/to/daedl.tex

Every row of figures in a table's source must be the transcribed row at the same place, of the same method;
unknown sets and scores in the heading must be those of the columns, in their order. Exit status 1 and a list
of differences otherwise. The digest that it prints is that of the transcription which was compared; a test
holds it, so that no figure changes unseen.
"""

import re
import sys
from pathlib import Path

from daedl_bench.paper import Cell, PaperTable, tables
from daedl_bench.spec import digest

METHODS = {r"$\mathcal{I}$-EDL": "i-edl", r"\textbf{DAEDL}": "daedl", "MSP": "softmax"}
PARTS = ("exp", "de", "sn")  # of the ablations, whose rows have marks in place of a name
SETS = {"fmnist": "fashion-mnist", "cifar-100": "cifar100", "cifar-10-c": "cifar10-c"}
SCORES = {"Alea": "aleatoric", "Epis": "epistemic"}
FIGURE = re.compile(r"([\d.]+)\s*\$\\pm\$\s*([\d.]+)")


def body(source: str, label: str) -> list[str]:
    """The lines of the tabular after `label`."""
    start = source.index(r"\begin{tabular}", source.index(rf"\label{{{label}}}"))
    return source[start : source.index(r"\end{tabular}", start)].split(r"\\")


def figures(lines: list[str]) -> list[tuple[str, list[Cell | None]]]:
    """The methods and their figures, in order; "-" is None."""
    rows = []
    for line in (each for each in lines if r"\pm" in each):
        cells: list[Cell | None] = []
        for cell in line.split("&"):
            if number := FIGURE.search(cell):
                cells.append(Cell(float(number[1]), float(number[2])))
            elif re.fullmatch(r"[\s]*(\\q?quad)?\s*-\s*", cell):
                cells.append(None)
        rows.append((method(line), cells))
    return rows


def method(line: str) -> str:
    """Our label of the method that a row of the source names."""
    marks = re.findall(r"\\([cx])mark", line)
    if marks:
        parts = [part for part, mark in zip(PARTS, marks, strict=True) if mark == "c"]
        return "+".join(parts) or "edl"
    name = re.sub(r"\\midrule", "", line.partition("&")[0]).strip()
    return METHODS.get(name, name.lower())


def headings(lines: list[str]) -> tuple[list[str], list[str]]:
    """The unknown sets and the scores above the figures, in order; a severity is not told apart."""
    above = "".join(line for line in lines if r"\pm" not in line)
    sets = [each.lower() for each in re.findall(r"rightarrow\$ ([\w-]+)", above)]
    return [SETS.get(each, each) for each in sets], [
        SCORES[each] for each in re.findall("Alea|Epis", above)
    ]


def differences(source: str, table: PaperTable) -> list[str]:
    """What does not agree, in words."""
    lines = body(source, table.label)
    published, ours = figures(lines), list(table.rows.items())
    sets, scores = headings(lines)
    told = [column for column in table.columns if column.task in ("ood", "shift")]
    columns = {
        "unknown sets": (
            list(dict.fromkeys((column.ood or "").partition("/")[0] for column in told)),
            sets,
        ),
        "scores": ([column.score for column in told], scores),
    }
    found = [
        f"{table.name}, {what}: {here} here, {there} in the source"
        for what, (here, there) in columns.items()
        if there and here != there
    ]
    if [name for name, _ in published] != [name for name, _ in ours]:
        names = [[name for name, _ in each] for each in (ours, published)]
        return [*found, f"{table.name}: rows {names[0]}, but {names[1]} in the source"]
    return found + [
        f"{table.name}, {name}, column {number}: {cell} here, {original} in the source"
        for (name, cells), (_, row) in zip(ours, published, strict=True)
        for number, (cell, original) in enumerate(zip(cells, row, strict=True))
        if cell != original
    ]


def transcription() -> str:
    """The digest of every table as it is transcribed."""
    return digest([repr(table) for table in tables().values()])


def main() -> int:
    """Check all tables."""
    source = Path(sys.argv[1]).read_text("utf-8")
    found = [line for table in tables().values() for line in differences(source, table)]
    cells = sum(len(row) for table in tables().values() for row in table.rows.values())
    agree = f"{cells} cells of {len(tables())} tables agree with the source ({transcription()})"
    print("\n".join(found) or agree)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
