"""Writes the ready model models/cifar10.daedl: DAEDL on CIFAR-10, seed 0 of the protocol `cpu`.

The network is trained if it is not in the cache. Half of the validation images calibrate the probabilities,
the others choose thresholds that reject 5% of such images.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from daedl import MaxRejectionRate
from daedl.demo.training import Progress
from daedl_bench import options
from daedl_bench.spec import catalogue
from daedl_bench.workspace import TRAINING, VALIDATION

LABEL, PROTOCOL, SEED = "daedl-diagonal", "cifar10-cpu", 0
app = typer.Typer()


@app.command(help=__doc__)
def main(
    data: options.DataRoot = None,
    cache: options.CacheFolder = None,
    out: Annotated[Path, typer.Option(help="The model file to write.")] = Path(
        "models/cifar10.daedl"
    ),
) -> None:
    torch.set_num_threads(1)
    specs, space = catalogue(), options.workspace(data, cache, Progress())
    predictor = space.prepare(specs.trial(LABEL, specs.protocols[PROTOCOL], SEED))
    classifier = predictor.classifier
    outputs, targets = predictor.outputs(TRAINING)
    classifier.fit_outputs(outputs, targets)
    outputs, targets = predictor.outputs(VALIDATION)
    half = len(targets) // 2
    first = outputs._replace(features=outputs.features[:half], logits=outputs.logits[:half])
    classifier.fit_outputs_held_out(first, targets[:half])
    held_out, _ = space.split(predictor.trial)
    classifier.class_names = list(held_out.class_names or ())
    classifier.calibrate(held_out.subset(range(half, len(targets))), MaxRejectionRate(0.05))
    classifier.save(out)
    typer.echo(f"wrote {out}, {out.stat().st_size / 2**20:.1f} MiB")
