"""The median of ln q of NatPN's flow per class, and for OOD images.

Networks that are not in the cache are trained. It explains figures and selects nothing.
"""

from collections.abc import Iterator

import torch
import typer

from daedl.demo.training import Progress
from daedl.evaluate import Measured
from daedl_bench import options, results
from daedl_bench.runner import measure_once
from daedl_bench.spec import catalogue
from daedl_bench.workspace import VALIDATION, Predictor

app = typer.Typer()


def medians(predictor: Predictor) -> Iterator[tuple[str, list[Measured]]]:
    """Per class of the validation images, and per OOD dataset."""
    outputs, targets = predictor.outputs(VALIDATION)
    known = outputs.logits.logsumexp(-1)
    parts = {f"mnist, class {c}": known[targets == c] for c in range(int(targets.max()) + 1)}
    for name in ("kmnist", "fashion-mnist"):
        parts[name] = predictor.outputs(name)[0].logits.logsumexp(-1)
    for name, log_q in parts.items():
        yield name, [Measured("likelihood", "log q", "median", float(log_q.median()))]


@app.command(help=__doc__)
def main(
    data: options.DataRoot = None,
    cache: options.CacheFolder = None,
    folder: options.ResultsFolder = options.RESULTS,
) -> None:
    torch.set_num_threads(1)
    specs, space = catalogue(), options.workspace(data, cache, Progress())
    path = folder / "natpn_flow.jsonl"
    for label in ("natpn", "natpn-joint"):
        trial = specs.trial(label, specs.protocols["mnist-brief"], 0)
        measure_once(path, space, trial, label, medians, "natpn-flow")
    table = results.frame(results.load(path)).pivot(index="data", columns="method", values="value")
    typer.echo(table.round(1).to_string())
