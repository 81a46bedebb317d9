"""What honest pairing is worth: DAEDL with every image's own density, and with another image's.

    python benchmarks/pairing.py --seeds 0,1,2,3,4 --cache FOLDER --data ROOT    rows to results/pairing.jsonl

The published MNIST code shuffles its test and OOD loaders and gathers densities and logits in separate
passes, so that the score which multiplies an image's logits is that of another image of the same set.
Here both come from one pass; this script shuffles the features of each set afterwards, to see how much of
a published figure that could explain. Networks that aren't in the cache are trained.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import Tensor

from daedl import data
from daedl.demo.training import Progress
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl_bench import rows
from daedl_bench.cell import Cell
from daedl_bench.report.specs import MISPAIRED
from daedl_bench.rows import Measured, Row
from daedl_bench.runner import measure
from daedl_bench.spec import catalogue, mispaired_key
from daedl_bench.store import Store

PATH = Path(__file__).parent / "results" / "pairing.jsonl"
# Of rows with honest pairing, which are here to be compared with on the same networks: no report shows them.
EXPERIMENT = "pairing"


class Mispaired(Cell):
    """A cell whose features are shuffled within each test set, so that they belong to other images."""

    @property
    def key(self) -> str:
        """Not that of honest pairing."""
        return mispaired_key(super().key)

    def predict(self, name: str) -> tuple[Prediction, Tensor]:
        """As a cell's, with the density of another image of the same set."""
        outputs, targets = self.outputs(name)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(targets), generator=generator)
        shuffled = Outputs(outputs.features[order], outputs.logits)
        return self.method.predict(shuffled, self.fitted), targets

    def classification(self, name: str) -> list[Measured]:
        """Without costs, which are the honest cell's."""
        return [each for each in super().classification(name) if each.task != "cost"]


def together(cell: Cell, label: str, name: str) -> list[Row]:
    """Whether evidence and density rise together among the images of a set, and how many have no score."""
    outputs, _ = cell.outputs(name)
    prediction, _ = cell.predict(name)
    evidence = outputs.logits.logsumexp(-1)  # ln α₀ before the density
    score, log_density = map(torch.as_tensor, (prediction.density_score, prediction.log_density))
    correlation = spearmanr(evidence, log_density).statistic
    figures = [
        Measured("pairing", "evidence and density", "rank correlation", float(correlation)),
        Measured("pairing", "density", "images at 0", int((score == 0).sum())),
    ]
    return [cell.row(each, experiment=EXPERIMENT, label=label, data=name) for each in figures]


def main() -> int:
    """Measure the seeds whose rows aren't there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--protocol", default="quick")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="with commas between")
    parser.add_argument("--methods", default="daedl", help="with a density, commas between")
    options = parser.parse_args()
    torch.set_num_threads(1)
    specs, progress = catalogue(), Progress()
    load, store = partial(data.load, root=options.data), Store(options.cache)
    held = {(row.spec, row.data) for row in rows.load(PATH)} if PATH.exists() else set()
    experiments = [specs.experiment(name) for name in ("mnist-ood", "mnist-shift")]
    seeds = map(int, options.seeds.split(","))
    for label, seed in product(options.methods.split(","), seeds):
        protocol = experiments[0].protocol(options.protocol)
        arguments = (protocol, specs.method(label, protocol), seed, load, store, progress)
        honest, mispaired = Cell(*arguments), Mispaired(*arguments)
        progress.starts(f"{protocol.name} · {label}, seed {seed}")
        for experiment, unit in ((each, unit) for each in experiments for unit in each.units):
            if (honest.key, unit) not in held:
                for _, found in measure(experiment, label, honest, unit):
                    rows.append(PATH, [replace(row, experiment=EXPERIMENT) for row in found])
                if unit != experiment.shift:
                    rows.append(PATH, together(honest, label, unit))
            if (mispaired.key, unit) not in held:
                for _, found in measure(experiment, label + MISPAIRED, mispaired, unit):
                    rows.append(PATH, found)
            held |= {(honest.key, unit), (mispaired.key, unit)}
    return 0


if __name__ == "__main__":
    sys.exit(main())
