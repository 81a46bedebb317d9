"""AUPR with one in-distribution image in eight, as in the evaluation that printed figures come from.

Average precision falls with the share of in-distribution images. The released code of PostNet compares the
test images of MNIST with the training and test images of KMNIST and Fashion-MNIST; the printed figures of
dropout, KL-PN, RKL-PN and PostNet are from its paper. The experiments compare test images with test images;
this study counts each OOD image seven times. AUROC would not change.

Trains nothing: run `python -m daedl_bench run mnist-ood --protocol brief` first; seeds whose networks are not
in the cache are left out. It explains figures and selects nothing.
"""

import torch
import typer

from daedl import metrics
from daedl.evaluate import Measured
from daedl_bench import results
from daedl_bench.options import (
    RESULTS,
    CacheFolder,
    DataRoot,
    Methods,
    ResultsFolder,
    Seeds,
    names,
    seed_list,
    workspace,
)
from daedl_bench.results import Row
from daedl_bench.runner import trial_rows
from daedl_bench.spec import catalogue
from daedl_bench.workspace import Predictor

TIMES = 7  # 70,000 OOD images for 10,000 in-distribution ones
app = typer.Typer()


def measure(predictor: Predictor, label: str, other: str) -> list[Row]:
    """AUPR of both scores, with every image of `other` counted `TIMES` times."""
    inside, outside = (predictor.predict(name)[0].scores() for name in ("mnist", other))
    measured = [
        Measured("ood", score, "aupr, one in eight", metrics.aupr(inside[score], repeated))
        for score in ("aleatoric", "epistemic")
        for repeated in [outside[score].repeat(TIMES)]
    ]
    return trial_rows(measured, predictor.trial, label, other, experiment="prevalence")


@app.command(help=__doc__)
def main(
    data: DataRoot = None,
    cache: CacheFolder = None,
    folder: ResultsFolder = RESULTS,
    methods: Methods = "dropout,kl-pn,rkl-pn,postnet",
    seeds: Seeds = "0-4",
) -> None:
    torch.set_num_threads(1)
    specs, space, path = catalogue(), workspace(data, cache), folder / "prevalence.jsonl"
    held = {row.spec for row in results.load(path)}
    for label in names(methods):
        for seed in seed_list(seeds):
            trial = specs.trial(label, specs.protocols["mnist-brief"], seed)
            if trial.key not in held and space.is_trained(trial):
                predictor = space.prepare(trial)
                for other in ("kmnist", "fashion-mnist"):
                    results.append(path, measure(predictor, label, other))
    summaries = results.summarise(results.frame(results.load(path)), ["method", "data", "score"])
    typer.echo(summaries.to_string())
