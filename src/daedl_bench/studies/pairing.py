"""DAEDL with the density of every image, and with the density of another image.

The published MNIST code shuffles its test and OOD loaders and computes densities and logits in separate
passes, so that the logits of an image are multiplied by the score of another image of the same dataset. Here
both come from one pass; this study shuffles the features of each dataset afterwards, to measure how much of a
published figure that explains. Networks that are not in the cache are trained.
"""

from typing import Annotated

import torch
import typer
from scipy.stats import spearmanr
from torch import Tensor

from daedl.demo.training import Progress
from daedl.evaluate import Measured
from daedl.prediction import Prediction
from daedl_bench import options, results
from daedl_bench.results import Row
from daedl_bench.runner import append_missing, trial_rows
from daedl_bench.spec import MISPAIRED, catalogue, mispaired_key
from daedl_bench.workspace import Predictor

# Experiment of the rows with the right densities, measured for comparison; no report shows them.
EXPERIMENT = "pairing"
app = typer.Typer()


class Mispaired(Predictor):
    """A predictor whose features are shuffled within each dataset."""

    def predict(self, name: str) -> tuple[Prediction, Tensor]:
        """Predictions with the density of another image of the same dataset."""
        outputs, targets = self.outputs(name)
        generator = torch.Generator().manual_seed(self.trial.seed)
        order = torch.randperm(len(targets), generator=generator)
        shuffled = outputs._replace(features=outputs.features[order])
        return self.classifier.predict_outputs(shuffled), targets

    def costs(self) -> list[Measured]:
        """None: the costs are the same."""
        return []


def correlation(predictor: Predictor, label: str, name: str) -> list[Row]:
    """Rank correlation of evidence and density in a dataset, and the number of images with score 0."""
    outputs, _ = predictor.outputs(name)
    prediction, _ = predictor.predict(name)
    evidence = outputs.logits.logsumexp(-1)  # ln α₀ before the density
    score, log_density = map(torch.as_tensor, (prediction.density_score, prediction.log_density))
    rank = float(spearmanr(evidence, log_density).statistic)
    measured = [
        Measured("pairing", "evidence and density", "rank correlation", rank),
        Measured("pairing", "density", "images at 0", int((score == 0).sum())),
    ]
    return trial_rows(measured, predictor.trial, label, name, experiment=EXPERIMENT)


@app.command(help=__doc__)
def main(
    data: options.DataRoot = None,
    cache: options.CacheFolder = None,
    folder: options.ResultsFolder = options.RESULTS,
    protocol: Annotated[str, typer.Option(help="quick, brief or paper.")] = "quick",
    methods: options.Methods = "daedl",
    seeds: options.Seeds = "0-4",
) -> None:
    torch.set_num_threads(1)
    specs, path = catalogue(), folder / "pairing.jsonl"
    space = options.workspace(data, cache, Progress())
    experiments = ood, _ = [specs.experiment(name) for name in ("mnist-ood", "mnist-shift")]
    for label in options.names(methods):
        for seed in options.seed_list(seeds):
            trial = specs.trial(label, ood.protocol(protocol), seed)
            space.progress.starts(f"{trial.protocol.name} · {label}, seed {seed}")
            predictor = space.prepare(trial)
            rows = results.load(path)
            if not any(row.spec == trial.key and row.task == "pairing" for row in rows):
                for name in ood.units:
                    results.append(path, correlation(predictor, label, name))
            mispaired, key = Mispaired(**vars(predictor)), mispaired_key(trial.key)
            for experiment, unit in ((each, unit) for each in experiments for unit in each.units):
                append_missing(path, experiment, label, predictor, unit, experiment=EXPERIMENT)
                append_missing(path, experiment, label + MISPAIRED, mispaired, unit, spec=key)
