"""What NatPN's one flow makes of the ten classes: the median of ln q by class, and of unknown images.

    python benchmarks/natpn_flow.py --cache FOLDER --data ROOT    rows to results/natpn_flow.jsonl

It trains nothing: `daedl bench run mnist-ood --methods natpn,natpn-joint` comes first. Known images are
those of the validation split. It explains figures, and chooses nothing.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from daedl import data
from daedl.data import ImageSet
from daedl_bench import rows
from daedl_bench.cell import Cell
from daedl_bench.rows import Measured
from daedl_bench.spec import catalogue
from daedl_bench.store import Store

PATH = Path(__file__).parent / "results" / "natpn_flow.jsonl"
LABELS = ("natpn", "natpn-joint")
UNKNOWN = ("kmnist", "fashion-mnist")


def log_likelihood(cell: Cell, images: ImageSet) -> Tensor:
    """ln q (N,)."""
    outputs, _ = cell.classifier.collect(images.batches(256))
    return outputs.logits.logsumexp(-1)


def medians(cell: Cell, load: partial[ImageSet]) -> Iterator[tuple[str, float]]:
    """Of each class of the validation images, and of unknown sets."""
    held_out, _ = load("mnist", "train").parted(cell.protocol.split[1], cell.seed)
    known = log_likelihood(cell, held_out)
    for c in range(held_out.num_classes):
        yield f"mnist, class {c}", float(known[held_out.labels == c].median())
    for name in UNKNOWN:
        yield name, float(log_likelihood(cell, load(name, "test")).median())


def main() -> int:
    """Look at the networks of seed 0, show and write the rows anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    specs = catalogue()
    protocol = specs.experiment("mnist-ood").protocol("brief")
    load, store = partial(data.load, root=options.data), Store(options.cache)
    table, found = Table("images", *LABELS, title="median of ln q"), []
    columns: dict[str, dict[str, float]] = {}
    for label in LABELS:
        cell = Cell(protocol, specs.method(label, protocol), 0, load, store)
        if not cell.trained:
            print(f"{label} isn't trained yet: daedl bench run mnist-ood --methods {label}")
            return 1
        columns[label] = dict(medians(cell, load))
        found += [
            rows.row(
                Measured("likelihood", "log q", "median", value),
                experiment="natpn-flow",
                method=label,
                data=name,
                seed=0,
                seconds=0.0,
                spec=cell.key,
                protocol=protocol.name,
            )
            for name, value in columns[label].items()
        ]
    rows.save(PATH, found)
    for name in columns[LABELS[0]]:
        table.add_row(name, *(f"{columns[label][name]:.1f}" for label in LABELS))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
