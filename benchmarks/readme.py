"""The README's table of every method, from rows.

    python benchmarks/readme.py    writes it into README.md

A test compares the two, so that the table can't fall behind the rows.
"""

import sys
from pathlib import Path

from daedl.bench.comparison import measured, titles
from daedl.bench.comparison.compare import DASH, text
from daedl.bench.comparison.measured import Measurements
from daedl.bench.spec import catalogue
from daedl.storage import write_atomically

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
PROTOCOL = "mnist-quick"
HEAD = "| | seeds | accuracy | ECE | KMNIST | Fashion-MNIST | MNIST-C | step | prediction |"


def lines(found: Measurements) -> list[str]:
    """The table in Markdown, a line for each method with rows; other numbers of seeds in brackets."""

    def figure(
        label: str, data: str, task: str, score: str, metric: str, scale: float = 100
    ) -> str:
        summary = found.summary(PROTOCOL, label, data, task, score, metric)
        if summary is None:
            return DASH
        others = task != "cost" and summary.n != seeds(label)
        return text(summary, scale=scale, count=others)

    def seeds(label: str) -> int:
        accuracy = found.summary(PROTOCOL, label, "mnist", "classification", "labels", "accuracy")
        return 0 if accuracy is None else accuracy.n

    def detection(label: str, data: str, task: str) -> str:
        epistemic = figure(label, data, task, "epistemic", "aupr")
        return figure(label, data, task, "aleatoric", "aupr") if epistemic == DASH else epistemic

    table = [HEAD, "|---" * 9 + "|"]
    for label in found.catalogue.experiment("mnist-ood").methods:
        if not seeds(label):
            continue
        cells = [
            titles.method(label),
            str(seeds(label)),
            figure(label, "mnist", "classification", "labels", "accuracy"),
            figure(label, "mnist", "calibration", "probs", "ece"),
            detection(label, "kmnist", "ood"),
            detection(label, "fashion-mnist", "ood"),
            detection(label, "mnist-c", "shift"),
            figure(label, "cost", "cost", "step", "relative", scale=1),
            figure(label, "cost", "cost", "prediction", "relative", scale=1),
        ]
        table.append(f"| {' | '.join(cells)} |")
    return table


def held(page: str) -> list[str]:
    """The lines of the table in the page, which ends at a blank line."""
    return page[page.index(HEAD) :].split("\n\n", maxsplit=1)[0].splitlines()


def main() -> int:
    """Put the table in its place."""
    page = README.read_text("utf-8")
    table = lines(measured.load(RESULTS, catalogue()))
    write_atomically(README, page.replace("\n".join(held(page)), "\n".join(table)).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
