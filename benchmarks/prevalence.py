"""What AUPR would be with one known image in eight, as in the evaluation that printed rows come from.

    python benchmarks/prevalence.py --cache FOLDER --data ROOT    rows to results/prevalence.jsonl

The average precision of known images falls with their share: the released code of PostNet takes the
test images of MNIST, but of KMNIST and Fashion-MNIST training and test images together. Its paper is
where the printed rows of dropout, KL-PN, RKL-PN and PostNet come from. Here test images stand against
test images, one to one; this script counts each unknown one seven times. AUROC would not change.

It trains nothing: `daedl bench run mnist-ood` comes first, and seeds whose networks aren't in the cache
are left out. It explains figures, and chooses nothing.
"""

import argparse
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from daedl import data, metrics
from daedl_bench import rows
from daedl_bench.cell import Cell
from daedl_bench.report.summary import Summary
from daedl_bench.report.tables import text
from daedl_bench.rows import Measured, Row
from daedl_bench.spec import catalogue
from daedl_bench.store import Store

PATH = Path(__file__).parent / "results" / "prevalence.jsonl"
LABELS = "dropout,kl-pn,rkl-pn,postnet"
SCORES = ("aleatoric", "epistemic")
TIMES = 7


def measured(cell: Cell, label: str, test: str, other: str) -> list[Row]:
    """AUPR of both published scores, with every image of `other` counted `TIMES` times."""
    inside, outside = cell.predict(test)[0].scores(), cell.predict(other)[0].scores()
    return [
        cell.row(
            Measured("ood", score, "aupr, one in eight", value),
            experiment="prevalence",
            label=label,
            data=other,
        )
        for score in SCORES
        for value in [metrics.aupr(inside[score], outside[score].repeat(TIMES))]
    ]


def show(found: list[Row]) -> None:
    """Mean and standard deviation over the seeds."""
    values: dict[tuple[str, str, str], list[float | None]] = defaultdict(list)
    for row in found:
        values[row.method, row.data, row.score].append(row.value)
    table = Table("method", "unknown images", "score", "AUPR (seeds)", title="One known in eight")
    for key, over_seeds in values.items():
        table.add_row(*key, text(Summary.of(over_seeds), count=True))
    Console().print(table)


def main() -> int:
    """Measure the cells whose rows aren't there yet, and show all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--methods", default=LABELS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    specs = catalogue()
    experiment = specs.experiment("mnist-ood")
    protocol = experiment.protocol("brief")
    load, store = partial(data.load, root=options.data), Store(options.cache)
    found = rows.load(PATH) if PATH.exists() else []
    held = {row.spec for row in found}
    for label in options.methods.split(","):
        for seed in range(options.seeds):
            cell = Cell(protocol, specs.method(label, protocol), seed, load, store)
            if cell.key not in held and cell.trained:
                for other in ("kmnist", "fashion-mnist"):
                    found += measured(cell, label, experiment.test, other)
    rows.save(PATH, found)
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
