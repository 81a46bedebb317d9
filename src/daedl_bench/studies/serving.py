"""Load and faults: `daedl serve` with 32 clients, with and without density; malformed requests; a crash.

Servers run in processes of their own. With and without density take turns, so that other load on the machine
disturbs both alike. The exit status is 1 if a figure exceeds its limit.
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
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

import daedl
from daedl.networks import ConvNet
from daedl_bench.datasets import load
from daedl_bench.options import RESULTS, DataRoot
from daedl_bench.studies._machine import Limited, conclude
from daedl_bench.studies._malformed import Malformed, picture, request

IMAGES = 256  # that clients send in turn
PROBES = 50  # images whose answers must not change
CONNECTIONS = 16  # that send malformed requests at a time
TIMEOUT = 5  # seconds that the server waits for a missing body, under malformed requests
TURN = 15  # seconds of load before the other server takes its turn
app = typer.Typer()


class Server:
    """`daedl serve` in a process of its own."""

    def __init__(self, model: Path, threads: int, *options: str) -> None:
        self.log = model.with_suffix(".log")
        self.command = [sys.executable, "-m", "daedl", "serve", str(model), *options]
        self.command += ["--threads", str(threads)]
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it, at the same port as before if there is one, and wait until it answers."""
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [*self.command, "--port", str(self.port)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        line = self.process.stdout.readline() if self.process.stdout else ""
        found = re.search(r":(\d+)$", line.strip())
        if found is None:
            raise RuntimeError(f"the server printed {line!r}; its log is {self.log}")
        self.port = int(found[1])

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def memory(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        return float(status.split("VmRSS:")[1].split()[0]) / 1024


@contextlib.contextmanager
def serving(model: Path, threads: int, *options: str) -> Iterator[Server]:
    """A server that is ended in any case."""
    server = Server(model, threads, *options)
    try:
        yield server
    finally:
        server.kill()


def save_models(data: Path | None, given: Path | None, folder: Path) -> tuple[Path, Path]:
    """Files of the MNIST ConvNet with density and of the same network without, both calibrated."""
    known = load("mnist", "test", data, download=False).subset(range(2000))
    model = daedl.Classifier.load(given) if given else _train(data)
    method = model.method.training_method()
    bare = daedl.Classifier(model.network, method, model.class_names).eval()
    paths = folder / "density.daedl", folder / "bare.daedl"
    for each, path in zip((model, bare), paths, strict=True):
        each.calibrate(known.batches())
        each.save(path)
    return paths


def _train(data: Path | None) -> daedl.Classifier:
    """One epoch on a part of the images: speed doesn't depend on accuracy."""
    some = load("mnist", "train", data, download=False).subset(range(12_000))
    model = daedl.Classifier(ConvNet(1, 10), leave_one_out=True)
    batches = some.batches(64, shuffle=True)
    daedl.fit(model, batches, max_epochs=1, fit_data=some.batches(), progress=False)
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


async def answers(port: int, bodies: Sequence[bytes]) -> list[bytes]:
    """Answers one by one: images predicted in one batch may differ in the last digit."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    bodies_out = []
    for body in bodies:
        writer.write(body)
        bodies_out.append((await response(reader))[1])
    writer.close()
    return bodies_out


async def send_malformed(port: int, number: int, malformed: Malformed) -> Counter[str]:
    """Send malformed requests and count the outcomes: a status, "closed", or "none within a minute"."""
    outcomes: Counter[str] = Counter()
    left = iter(range(number))

    async def outcome(data: bytes) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            return str((await asyncio.wait_for(response(reader), 60))[0])
        except (ConnectionError, asyncio.IncompleteReadError):
            return "closed"
        except TimeoutError:
            return "none within a minute"
        finally:
            writer.close()

    async def client() -> None:
        for _ in left:
            outcomes[await outcome(malformed())] += 1

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return outcomes


def load_rows(
    paths: Sequence[Path], bodies: list[bytes], clients: int, seconds: float, threads: int
) -> list[Limited]:
    """Throughput and latency with density and without, in turns."""
    loads = Load(), Load()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(path, threads)) for path in paths]
        for server in servers:
            asyncio.run(put_load(server.port, bodies, clients, 2, Load()))
        turns = max(1, round(seconds / TURN))
        for turn in range(turns):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                port, part = servers[side].port, seconds / turns
                asyncio.run(put_load(port, bodies, clients, part, loads[side]))
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


def fault_rows(
    path: Path, bodies: list[bytes], pixels: Tensor, clients: int, number: int, threads: int
) -> list[Limited]:
    """Malformed requests, then a crash under load: answers must not change."""
    with serving(path, threads, "--timeout", str(TIMEOUT)) as server:
        probes, started = bodies[:PROBES], time.perf_counter()
        expected, before = asyncio.run(answers(server.port, probes)), server.memory()
        outcomes = asyncio.run(send_malformed(server.port, number, Malformed(pixels)))
        seconds = time.perf_counter() - started
        failed = sum(count for name, count in outcomes.items() if name[0] in "5n")
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(outcomes.items()))
        afterwards, grown = asyncio.run(answers(server.port, probes)), server.memory() - before
        tracebacks = server.log.read_text("utf-8", "replace").count("Traceback")
        asyncio.run(_crash(server, bodies, clients))
        server.start()
        restarted = asyncio.run(answers(server.port, probes))
    case = "broken requests"
    return [
        Limited(case, counts, "", number, seconds=seconds),
        Limited("answered with 5xx or not at all", case, "", failed, 0),
        Limited("tracebacks in the log", case, "", tracebacks, 0),
        Limited("memory grown by", case, "MiB", grown),
        _same(f"answers after {case}", expected, afterwards),
        _same("answers after kill -9 under load and restart", expected, restarted),
    ]


async def _crash(server: Server, bodies: Sequence[bytes], clients: int) -> None:
    """Kill the server under load."""
    work = asyncio.create_task(put_load(server.port, bodies, clients, 5, Load()))
    await asyncio.sleep(1)
    server.kill()
    await work


def _same(name: str, expected: Sequence[bytes], arrived: Sequence[bytes]) -> Limited:
    """The share of identical answers."""
    share = sum(a == b for a, b in zip(expected, arrived, strict=True)) / len(expected)
    return Limited(name, f"{len(expected)} images", "equal", share, 1.0, at_least=True)


@app.command(help=__doc__)
def main(
    data: DataRoot = None,
    model: Annotated[Path | None, typer.Option(help="A fitted DAEDL model.")] = None,
    seconds: Annotated[float, typer.Option(help="Of load, per server.")] = 60,
    clients: int = 32,
    malformed: Annotated[int, typer.Option(help="Number of malformed requests.")] = 10_000,
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
        measured += fault_rows(paths[0], bodies, test[0], clients, malformed, threads)
    conclude("Serving", measured, rows)
