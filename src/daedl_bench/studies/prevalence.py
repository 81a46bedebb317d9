"""AUPR with one in-distribution image in eight, as in the evaluation that printed figures come from.

Average precision falls with the share of in-distribution images. The released code of PostNet compares the
test images of MNIST with the training and test images of KMNIST and Fashion-MNIST; the printed figures of
dropout, KL-PN, RKL-PN and PostNet are from its paper. The experiments compare test images with test images;
this study counts each OOD image seven times. AUROC would not change.

Trains nothing: run `python -m daedl_bench run mnist-ood --protocol brief` first; seeds whose networks are not
in the cache are left out. It explains figures and selects nothing.
"""

from collections.abc import Iterator

import torch
import typer

from daedl import metrics
from daedl.evaluate import Measured
from daedl_bench import options, results
from daedl_bench.runner import measure_once
from daedl_bench.spec import catalogue
from daedl_bench.workspace import Predictor

TIMES = 7  # 70,000 OOD images for 10,000 in-distribution ones
app = typer.Typer()


def measure(predictor: Predictor) -> Iterator[tuple[str, list[Measured]]]:
    """AUPR of both scores, with every OOD image counted `TIMES` times."""
    inside = predictor.predict("mnist")[0].scores()
    for other in ("kmnist", "fashion-mnist"):
        outside = predictor.predict(other)[0].scores()
        yield (
            other,
            [
                Measured("ood", score, "aupr, one in eight", metrics.aupr(inside[score], repeated))
                for score in ("aleatoric", "epistemic")
                for repeated in [outside[score].repeat(TIMES)]
            ],
        )


@app.command(help=__doc__)
def main(
    data: options.DataRoot = None,
    cache: options.CacheFolder = None,
    folder: options.ResultsFolder = options.RESULTS,
    methods: options.Methods = "dropout,kl-pn,rkl-pn,postnet",
    seeds: options.Seeds = "0-4",
) -> None:
    torch.set_num_threads(1)
    specs, space, path = catalogue(), options.workspace(data, cache), folder / "prevalence.jsonl"
    for label in options.names(methods):
        for seed in options.seed_list(seeds):
            trial = specs.trial(label, specs.protocols["mnist-brief"], seed)
            if space.is_trained(trial):
                measure_once(path, space, trial, label, measure, "prevalence")
    summaries = results.summarise(results.frame(results.load(path)), ["method", "data", "score"])
    typer.echo(summaries.to_string())
