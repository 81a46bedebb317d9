"""Load: `daedl serve` with 32 clients, with and without density.

Each server runs in a separate process. Load alternates between the two, so that other load on the machine
affects both equally. The exit status is 1 if a figure exceeds its limit.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

import daedl
from daedl.networks import ConvNet
from daedl_bench.datasets import load
from daedl_bench.options import RESULTS, DataRoot
from daedl_bench.server import Load, picture, put_load, request, serving
from daedl_bench.studies._machine import Limited, conclude

IMAGES = 256  # that clients send in rotation
TURN = 15  # seconds of load before the other server takes its turn
app = typer.Typer()


def save_models(data: Path | None, given: Path | None, folder: Path) -> tuple[Path, Path]:
    """Files of the MNIST ConvNet with density and of the same network without, both calibrated."""
    known = load("mnist", "test", data, download=False).subset(range(2000))
    model = daedl.Classifier.load(given) if given else _train(data)
    method = model.method.training_method()
    bare = daedl.Classifier(model.network, method, model.class_names).eval()
    paths = folder / "density.daedl", folder / "bare.daedl"
    for each, path in zip((model, bare), paths, strict=True):
        each.calibrate(known)
        each.save(path)
    return paths


def _train(data: Path | None) -> daedl.Classifier:
    """One epoch on a part of the images: speed doesn't depend on accuracy."""
    some = load("mnist", "train", data, download=False).subset(range(12_000))
    model = daedl.Classifier(ConvNet(1, 10), leave_one_out=True)
    daedl.fit(model, some, max_epochs=1, progress=False)
    return model.eval()


def load_rows(
    paths: Sequence[Path], bodies: list[bytes], clients: int, seconds: float, threads: int
) -> list[Limited]:
    """Throughput, latency and CPU time with density and without, alternating."""
    loads, spent = (Load(), Load()), [0.0, 0.0]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(path, threads=threads)) for path in paths]
        for server in servers:
            asyncio.run(put_load(server.port, bodies, clients, 2, Load()))
        turns = max(1, round(seconds / TURN))
        for turn in range(turns):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                part = seconds / turns
                server, before = servers[side], servers[side].cpu_seconds()
                asyncio.run(put_load(server.port, bodies, clients, part, loads[side]))
                spent[side] += server.cpu_seconds() - before
    rows = []
    cpu = [1000 * each / len(side.latencies) for each, side in zip(spent, loads, strict=True)]
    cases = "with density", "without density"
    for case, each, milliseconds in zip(cases, loads, cpu, strict=True):
        seen, p99 = dict(each.errors) or "", 1000 * float(np.quantile(each.latencies, 0.99))
        rows += [
            Limited("errors under load", f"{case} {seen}".strip(), "", each.errors.total(), 0),
            Limited("requests a second", case, "1/s", each.rate),
            Limited("99% answered within", case, "ms", p99),
            Limited("CPU time a request", case, "ms", milliseconds),
        ]
    ratio, name = loads[0].rate / loads[1].rate, "requests a second, with / without density"
    rows.append(Limited(name, "MNIST ConvNet", "times", ratio, 0.95, at_least=True))
    # Unlike throughput, hardly affected by other load on the machine.
    name = "CPU time a request, without / with density"
    rows.append(Limited(name, "MNIST ConvNet", "times", cpu[1] / cpu[0], 0.95, at_least=True))
    return [replace(each, seconds=seconds, clients=clients) for each in rows]


@app.command(help=__doc__)
def main(
    data: DataRoot = None,
    model: Annotated[Path | None, typer.Option(help="A fitted DAEDL model.")] = None,
    seconds: Annotated[float, typer.Option(help="Of load, per server.")] = 60,
    clients: int = 32,
    threads: Annotated[int, typer.Option(help="Threads of torch per server.")] = 2,
    rows: Annotated[Path, typer.Option(help="File to append to.")] = RESULTS / "serving.jsonl",
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = save_models(data, model, Path(folder))
        test = load("mnist", "test", data, download=False).images[-IMAGES:]
        bodies = [request(picture(pixels)) for pixels in test]
        measured = load_rows(paths, bodies, clients, seconds, threads)
    conclude("Serving", measured, rows)
