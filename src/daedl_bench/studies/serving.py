"""Load: `daedl serve` with 32 clients, with and without density.

Each server runs in a separate process. Load alternates between the two, so that other load on the machine
affects both equally. The exit status is 1 if a figure exceeds its limit.
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from PIL import Image
from torch import Tensor

import daedl
from daedl.networks import ConvNet
from daedl_bench.datasets import load
from daedl_bench.options import RESULTS, DataRoot
from daedl_bench.studies._machine import Limited, conclude

IMAGES = 256  # that clients send in turn
TURN = 15  # seconds of load before the other server takes its turn
app = typer.Typer()


@contextlib.contextmanager
def serving(model: Path, threads: int) -> Iterator[int]:
    """The port of `daedl serve` in a separate process."""
    command = [sys.executable, "-m", "daedl", "serve", str(model), "--port", "0"]
    with subprocess.Popen(
        [*command, "--threads", str(threads)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.search(r":(\d+)$", line.strip())
            if found is None:
                raise RuntimeError(f"the server printed {line!r}; expected its address")
            yield int(found[1])
        finally:
            process.kill()


def request(pixels: Tensor) -> bytes:
    """An HTTP request with pixels (1, H, W), uint8, as a PNG file."""
    buffer = BytesIO()
    Image.fromarray(pixels[0].numpy()).save(buffer, "PNG")
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    return f"{head}Content-Length: {len(buffer.getvalue())}\r\n\r\n".encode() + buffer.getvalue()


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


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1])) if length else await reader.read()
    return int(head.split(b" ", 2)[1]), body


@dataclass
class Load:
    """Latencies and errors that clients observed."""

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds


async def put_load(
    port: int, bodies: Sequence[bytes], clients: int, seconds: float, to: Load
) -> None:
    """Run `clients` that send a request whenever the last one is answered."""
    started = time.perf_counter()

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (sent := time.perf_counter()) < started + seconds:
            writer.write(bodies[number % len(bodies)])
            status, _ = await response(reader)
            to.latencies.append(time.perf_counter() - sent)
            if status != 200:
                to.errors[str(status)] += 1
            number += clients
        writer.close()

    ended = await asyncio.gather(*map(client, range(clients)), return_exceptions=True)
    to.errors.update(type(each).__name__ for each in ended if isinstance(each, BaseException))
    to.seconds += time.perf_counter() - started


def load_rows(
    paths: Sequence[Path], bodies: list[bytes], clients: int, seconds: float, threads: int
) -> list[Limited]:
    """Throughput and latency with density and without, in turns."""
    loads = Load(), Load()
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(serving(path, threads)) for path in paths]
        for port in ports:
            asyncio.run(put_load(port, bodies, clients, 2, Load()))
        turns = max(1, round(seconds / TURN))
        for turn in range(turns):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                part = seconds / turns
                asyncio.run(put_load(ports[side], bodies, clients, part, loads[side]))
    rows = []
    for case, each in zip(("with density", "without density"), loads, strict=True):
        seen, p99 = dict(each.errors) or "", 1000 * float(np.quantile(each.latencies, 0.99))
        rows += [
            Limited("errors under load", f"{case} {seen}".strip(), "", each.errors.total(), 0),
            Limited("requests a second", case, "1/s", each.rate),
            Limited("99% answered within", case, "ms", p99),
        ]
    ratio, name = loads[0].rate / loads[1].rate, "requests a second, with / without density"
    rows.append(Limited(name, "MNIST ConvNet", "times", ratio, 0.9, at_least=True))
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
        bodies = [request(pixels) for pixels in test]
        measured = load_rows(paths, bodies, clients, seconds, threads)
    conclude("Serving", measured, rows)
