"""The median of ln q of NatPN's flow per class, and for OOD images.

Trains nothing: run `python -m daedl_bench run mnist-ood --protocol brief --methods natpn,natpn-joint` first.
It explains figures and selects nothing.
"""

from collections.abc import Iterator

import torch
import typer

from daedl.evaluate import Measured
from daedl_bench import results
from daedl_bench.options import RESULTS, CacheFolder, DataRoot, ResultsFolder, workspace
from daedl_bench.runner import trial_rows
from daedl_bench.spec import catalogue
from daedl_bench.workspace import VALIDATION, Predictor

LABELS = ("natpn", "natpn-joint")
OOD = ("kmnist", "fashion-mnist")
app = typer.Typer()


def medians(predictor: Predictor) -> Iterator[tuple[str, Measured]]:
    """Per class of the validation images, and per OOD dataset."""
    outputs, targets = predictor.outputs(VALIDATION)
    known = outputs.logits.logsumexp(-1)
    parts = {f"mnist, class {c}": known[targets == c] for c in range(int(targets.max()) + 1)}
    parts |= {name: predictor.outputs(name)[0].logits.logsumexp(-1) for name in OOD}
    for name, log_q in parts.items():
        yield name, Measured("likelihood", "log q", "median", float(log_q.median()))


@app.command(help=__doc__)
def main(data: DataRoot = None, cache: CacheFolder = None, folder: ResultsFolder = RESULTS) -> None:
    torch.set_num_threads(1)
    specs, space = catalogue(), workspace(data, cache)
    protocol, rows = specs.protocols["mnist-brief"], []
    for label in LABELS:
        trial = specs.trial(label, protocol, 0)
        if not space.is_trained(trial):
            typer.echo(
                f"{label} is not trained: python -m daedl_bench run mnist-ood --protocol brief "
                f"--methods {label}"
            )
            raise typer.Exit(1)
        for name, median in medians(space.prepare(trial)):
            rows += trial_rows([median], trial, label, name, experiment="natpn-flow")
    results.save(folder / "natpn_flow.jsonl", rows)
    table = results.frame(rows).pivot(index="data", columns="method", values="value")
    typer.echo(table.round(1).to_string())
