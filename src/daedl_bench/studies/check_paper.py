"""Compares the transcribed tables cell by cell with the LaTeX source of the paper.

Every row of figures in the source must be the transcribed row at the same position, of the same method; OOD
datasets and scores in the heading must match the columns, in their order. Differences are listed, and
the exit status is 1. The digest that is printed identifies the transcription; a test holds it.
"""

import re
from dataclasses import asdict
from pathlib import Path

import typer

from daedl_bench.paper import PaperTable, Published, tables
from daedl_bench.spec import digest

METHODS = {r"$\mathcal{I}$-EDL": "i-edl", r"\textbf{DAEDL}": "daedl", "MSP": "softmax"}
PARTS = ("exp", "de", "sn")  # of the ablations, whose rows have marks instead of a name
SETS = {"fmnist": "fashion-mnist", "cifar-100": "cifar100", "cifar-10-c": "cifar10-c"}
SCORES = {"Alea": "aleatoric", "Epis": "epistemic"}
FIGURE = re.compile(r"([\d.]+)\s*\$\\pm\$\s*([\d.]+)")
app = typer.Typer()


def body(source: str, label: str) -> list[str]:
    """The lines of the tabular after `label`."""
    start = source.index(r"\begin{tabular}", source.index(rf"\label{{{label}}}"))
    return source[start : source.index(r"\end{tabular}", start)].split(r"\\")


def figures(line: str) -> list[Published | None]:
    """The figures of a row; None for "-"."""
    cells: list[Published | None] = []
    for cell in line.split("&"):
        if number := FIGURE.search(cell):
            cells.append(Published(float(number[1]), float(number[2])))
        elif re.fullmatch(r"[\s]*(\\q?quad)?\s*-\s*", cell):
            cells.append(None)
    return cells


def method(line: str) -> str:
    """Our label of the method of a row."""
    if marks := re.findall(r"\\([cx])mark", line):
        parts = [part for part, mark in zip(PARTS, marks, strict=True) if mark == "c"]
        return "+".join(parts) or "edl"
    name = re.sub(r"\\midrule", "", line.partition("&")[0]).strip()
    return METHODS.get(name, name.lower())


def differences(source: str, table: PaperTable) -> list[str]:
    """Differences between the transcription and the source, as text."""
    lines = body(source, table.label)
    published = [(method(line), figures(line)) for line in lines if r"\pm" in line]
    above = "".join(line for line in lines if r"\pm" not in line)
    # Severities are not distinguished.
    sets = [each.lower() for each in re.findall(r"rightarrow\$ ([\w-]+)", above)]
    detection = [column for column in table.columns if column.task in ("ood", "shift")]
    ours = list(dict.fromkeys((column.ood or "").partition("/")[0] for column in detection))
    compared = {
        "OOD datasets": (ours, [SETS.get(each, each) for each in sets]),
        "scores": (
            [column.score for column in detection],
            [SCORES[each] for each in re.findall("Alea|Epis", above)],
        ),
        "rows": (list(table.rows), [name for name, _ in published]),
    }
    found = [
        f"{table.name}, {what}: {here} here, {there} in the source"
        for what, (here, there) in compared.items()
        if there and here != there
    ]
    return found + [
        f"{table.name}, {name}, column {number}: {cell} here, {original} in the source"
        for name, row in published
        for number, (cell, original) in enumerate(zip(table.rows.get(name, row), row, strict=True))
        if cell != original
    ]


def transcription() -> str:
    """The digest of every transcribed table."""
    return digest([asdict(table) for table in tables().values()])


@app.command(help=__doc__)
def main(source: Path) -> None:
    text = source.read_text("utf-8")
    found = [line for table in tables().values() for line in differences(text, table)]
    cells = sum(len(row) for table in tables().values() for row in table.rows.values())
    agree = f"{cells} cells of {len(tables())} tables agree with the source ({transcription()})"
    typer.echo("\n".join(found) or agree)
    raise typer.Exit(1 if found else 0)
