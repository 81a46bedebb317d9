"""Compare the transcribed tables cell by cell with the paper's LaTeX source.

    python benchmarks/check_paper.py path/to/daedl.tex

Every row of figures in a table's source must be the transcribed row at the same place. Exit status 1 and a
list of differences otherwise.
"""

import re
import sys
from pathlib import Path

from daedl.bench.paper import Cell, PaperTable, tables


def figures(source: str, label: str) -> list[list[Cell | None]]:
    """The rows of figures in the tabular after `label`, in order; "-" is None."""
    start = source.index(r"\begin{tabular}", source.index(rf"\label{{{label}}}"))
    body = source[start : source.index(r"\end{tabular}", start)]
    rows = []
    for line in body.split(r"\\"):
        if r"\pm" not in line:
            continue
        cells: list[Cell | None] = []
        for cell in line.split("&"):
            number = re.search(r"([\d.]+)\s*\$\\pm\$\s*([\d.]+)", cell)
            if number:
                cells.append(Cell(float(number[1]), float(number[2])))
            elif re.fullmatch(r"[\s]*(\\q?quad)?\s*-\s*", cell):
                cells.append(None)
        rows.append(cells)
    return rows


def differences(source: str, table: PaperTable) -> list[str]:
    """What does not agree, in words."""
    published = figures(source, table.label)
    ours = list(table.rows.items())
    if len(published) != len(ours):
        return [f"{table.name}: {len(ours)} rows, but the source has {len(published)}"]
    return [
        f"{table.name}, {method}, column {number}: {cell} here, {original} in the source"
        for (method, cells), row in zip(ours, published, strict=True)
        for number, (cell, original) in enumerate(zip(cells, row, strict=True))
        if cell != original
    ]


def main() -> int:
    """Check all tables."""
    source = Path(sys.argv[1]).read_text("utf-8")
    found = [line for table in tables().values() for line in differences(source, table)]
    cells = sum(len(row) for table in tables().values() for row in table.rows.values())
    print("\n".join(found) or f"{cells} cells of {len(tables())} tables agree with the source")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
