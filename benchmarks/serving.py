"""Load and faults: `daedl serve` with 32 clients, with and without density; broken requests; a crash.

    python benchmarks/serving.py --data DATA [--model FILE] [--seconds 60] [--rows FILE]

Servers run in processes of their own, apart from the clients. With and without density take turns, so that
a noisy machine disturbs both alike. A missed limit makes the exit status 1.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

import daedl
from daedl.networks import ConvNet
from daedl.serving import ServerConfig
from daedl_bench.datasets import load
from limits import Limited, conclude

RESULTS = Path(__file__).parent / "results" / "serving.jsonl"
# As `daedl serve`, whether or not its script is on the path.
SERVE = "import typer; from daedl.cli.serve import serve; typer.run(serve)"
IMAGES = 256  # that clients send, one after the other
PROBES = 50  # whose answers must stay the same
CONNECTIONS = 16  # that send broken requests at a time
PATIENCE = 5  # seconds that the server waits for a body that never comes, while requests are broken


@dataclass(frozen=True)
class ServingRow(Limited):
    """A figure, with the seconds and the clients of its load."""

    seconds: float = 0.0
    clients: int = 0


# ---- models and servers


def models(data: Path | None, given: Path | None, folder: Path) -> tuple[Path, Path]:
    """Files of the MNIST ConvNet with density and of the same network without, both calibrated."""
    known = load("mnist", "test", data, download=False).subset(range(2000))
    model = daedl.Classifier.load(given) if given else trained(data)
    method = model.method.training_method()
    bare = daedl.Classifier(model.network, method, model.class_names).eval()
    paths = folder / "density.daedl", folder / "bare.daedl"
    for each, path in zip((model, bare), paths, strict=True):
        each.calibrate(known.batches())
        each.save(path)
    return paths


def trained(data: Path | None) -> daedl.Classifier:
    """A moment's training: speed depends on the network, not on how much it has learned."""
    some = load("mnist", "train", data, download=False).subset(range(12_000))
    model = daedl.Classifier(ConvNet(1, 10), leave_one_out=True)
    batches = some.batches(64, shuffle=True)
    daedl.fit(model, batches, max_epochs=1, fit_data=some.batches(), progress=False)
    return model.eval()


class Server:
    """`daedl serve` in a process of its own."""

    def __init__(self, model: Path, threads: int, log: Path, *more: str) -> None:
        self.model, self.threads, self.log, self.more = model, threads, log, more
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it, at the port that it had before if it had one, and wait until it answers."""
        command = [sys.executable, "-c", SERVE, str(self.model), "--port", str(self.port)]
        command += ["--threads", str(self.threads), *self.more]
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)$", line.strip())
        if found is None:
            raise RuntimeError(f"the server said {line!r}; its log is {self.log}")
        self.port = int(found[1])

    def kill(self) -> None:
        """End it as a crash would: it can finish nothing."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def memory(self) -> float:
        """MiB that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        return float(status.split("VmRSS:")[1].split()[0]) / 1024

    def tracebacks(self) -> int:
        """Errors in its log that nobody foresaw."""
        return self.log.read_text("utf-8", "replace").count("Traceback")


@contextlib.contextmanager
def serving(model: Path, threads: int, log: Path, *more: str) -> Iterator[Server]:
    """A server, with `more` options, that is ended in any case."""
    server = Server(model, threads, log, *more)
    try:
        yield server
    finally:
        server.kill()


# ---- clients


def request(body: bytes, kind: str = "image/png", path: str = "/predict") -> bytes:
    """A whole request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1])) if length else await reader.read()
    return int(head.split(b" ", 2)[1]), body


@dataclass
class Load:
    """What clients saw."""

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    @property
    def p99(self) -> float:
        """Milliseconds within which 99% of the answers came."""
        return 1000 * float(np.quantile(self.latencies, 0.99))


async def put_load(
    port: int, bodies: Sequence[bytes], clients: int, seconds: float, to: Load
) -> None:
    """`clients` that send one request after the other, each when it has the last one's answer."""
    started = time.perf_counter()
    end = started + seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (sent := time.perf_counter()) < end:
            writer.write(bodies[number % len(bodies)])
            status, _ = await response(reader)
            to.latencies.append(time.perf_counter() - sent)
            if status != 200:
                to.errors[str(status)] += 1
            number += clients
        writer.close()

    results = await asyncio.gather(*map(client, range(clients)), return_exceptions=True)
    to.errors.update(type(each).__name__ for each in results if isinstance(each, BaseException))
    to.seconds += time.perf_counter() - started


async def answers(port: int, bodies: Sequence[bytes]) -> list[bytes]:
    """Answers one by one: images that are predicted together may differ in the last digit."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for body in bodies:
        writer.write(body)
        found.append((await response(reader))[1])
    writer.close()
    return found


# ---- broken requests


def picture(pixels: Tensor, kind: str = "PNG") -> bytes:
    """Pixels (1, H, W), uint8, as a file."""
    buffer = BytesIO()
    Image.fromarray(pixels[0].numpy()).save(buffer, kind)
    return buffer.getvalue()


def announced(width: int, height: int) -> bytes:
    """A PNG whose header promises this size, without the pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return len(data).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99)))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Cut off, or with some bytes changed, taken out or put in."""
    if draw.random() < 0.3:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(draw.randint(1, 20)):
        place = draw.randrange(max(1, len(changed)))
        changed[place : place + draw.randint(0, 4)] = draw.randbytes(draw.randint(0, 4))
    return bytes(changed)


class Broken:
    """Requests that are wrong in many ways, drawn with a seed."""

    def __init__(self, pixels: Tensor, seed: int = 0) -> None:
        self.draw = random.Random(seed)
        array = pixels.numpy()
        buffer = BytesIO()
        np.save(buffer, array)
        form = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a.png"\r\n\r\n'
        self.good = [
            ("image/png", picture(pixels)),
            ("image/jpeg", picture(pixels, "JPEG")),
            ("application/octet-stream", buffer.getvalue()),
            ("application/json", json.dumps({"array": (array / 255).tolist()}).encode()),
            ("multipart/form-data; boundary=b", form + picture(pixels) + b"\r\n--b--\r\n"),
        ]
        # Damaged files are the most of it; what costs the sender most is the rarest.
        self.kinds: list[tuple[Callable[[], bytes], int]] = [
            (self.damaged, 50),
            (self.fuzzed, 15),
            (self.mistaken, 10),
            (self.giant, 8),
            (self.structured, 8),
            (self.protocol, 8),
            (self.oversized, 1),
        ]

    def __call__(self) -> bytes:
        """The next one."""
        kinds, weights = zip(*self.kinds, strict=True)
        made: bytes = self.draw.choices(kinds, weights)[0]()
        return made

    def damaged(self) -> bytes:
        """A good body, damaged."""
        kind, body = self.draw.choice(self.good)
        path = self.draw.choice(["/predict", "/predict/batch"])
        return request(damaged(body, self.draw), kind, path)

    def fuzzed(self) -> bytes:
        """Bytes without any meaning, under a content type that has one."""
        kind, _ = self.draw.choice(self.good)
        return request(self.draw.randbytes(self.draw.randint(0, 5000)), kind)

    def mistaken(self) -> bytes:
        """Another content type than what is sent, or none that is known."""
        kinds = [kind for kind, _ in self.good] + ["text/html", "image/gif", "", "é/\x7f"]
        _, body = self.draw.choice(self.good)
        return request(body, self.draw.choice(kinds), "/predict/batch")

    def giant(self) -> bytes:
        """Pictures and arrays that promise to be huge."""
        size = self.draw.choice([5000, 9000, 30_000, 2**31 - 1])
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({size}, {size})}}".ljust(117)
        array = b"\x93NUMPY\x01\x00v\x00" + header.encode() + b"\n" + bytes(64)
        kind = self.draw.choice(["image/png", "application/octet-stream"])
        return request(announced(size, size) if kind == "image/png" else array, kind)

    def structured(self) -> bytes:
        """JSON of the wrong depth, shape or kind."""
        row = [0.5] * 28
        bodies = [
            "[" * 100_000,
            '{"array": ' + "[" * 500 + "]" * 500 + "}",
            json.dumps({"array": [row] * 27}),
            json.dumps({"array": [[*row[1:], "x" * 5000]] * 28}),
            json.dumps({"array": [[*row[1:], 10**400]] * 28}).replace("0.5", "5e999"),
            json.dumps({"array": [row] * 28, "max": [1]}),
            json.dumps({"images": [[row] * 28] * 65}),
            '{"array": [[NaN]]}',
            "null",
        ]
        path = self.draw.choice(["/predict", "/predict/batch"])
        return request(self.draw.choice(bodies).encode(), "application/json", path)

    def protocol(self) -> bytes:
        """What is no HTTP, or HTTP that lies."""
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        heads = [
            self.draw.randbytes(200) + b"\r\n\r\n",
            head + b"Content-Length: 1000000000000\r\n\r\n",
            head + b"Content-Length: -5\r\n\r\n",
            head + b"Content-Length: 10\r\nContent-Length: 11\r\n\r\n0123456789",
            head + b"Content-Length: 500\r\n\r\nshort",
            head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            head + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            head + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
            b"GET /" + b"%ff" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"DELETE /predict HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        ]
        return self.draw.choice(heads)

    def oversized(self) -> bytes:
        """A body that is really larger than allowed; announced, or in chunks that just don't end."""
        size = ServerConfig().max_bytes + 2**20
        if self.draw.random() < 0.5:
            return request(bytes(size))
        chunk = b"%x\r\n" % 2**20 + bytes(2**20) + b"\r\n"
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * (size // 2**20)


async def send_broken(port: int, number: int, broken: Broken) -> Counter[str]:
    """Send `number` broken requests; how often each status, or no answer, came back."""
    outcomes: Counter[str] = Counter()
    left = iter(range(number))

    async def client() -> None:
        for _ in left:
            outcomes[await outcome(port, broken())] += 1

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return outcomes


async def outcome(port: int, data: bytes) -> str:
    """The status of the answer to a request, "closed" if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        status, _ = await asyncio.wait_for(response(reader), 60)
        return str(status)
    except (ConnectionError, asyncio.IncompleteReadError):
        return "closed"
    except TimeoutError:
        return "none within a minute"
    finally:
        writer.close()


# ---- what is measured


def loaded(
    paths: tuple[Path, Path], bodies: list[bytes], options: argparse.Namespace
) -> list[ServingRow]:
    """Throughput and latency with density and without, in turns."""
    found = Load(), Load()
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(serving(path, options.threads, path.with_suffix(".log")))
            for path in paths
        ]
        for server in servers:
            asyncio.run(put_load(server.port, bodies, options.clients, 2, Load()))
        turns = max(1, round(options.seconds / options.slice))
        for turn in range(turns):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                seconds = options.seconds / turns
                work = put_load(servers[side].port, bodies, options.clients, seconds, found[side])
                asyncio.run(work)
    rows = []
    for case, each in zip(("with density", "without density"), found, strict=True):
        errors = sum(each.errors.values())
        rows += [
            ServingRow(
                "errors under load", f"{case} {dict(each.errors) or ''}".strip(), "", errors, 0
            ),
            ServingRow("requests a second", case, "1/s", each.rate),
            ServingRow("99% answered within", case, "ms", each.p99),
        ]
    ratio = found[0].rate / found[1].rate
    name = "requests a second, with / without density"
    rows.append(ServingRow(name, "MNIST ConvNet", "times", ratio, 0.9, at_least=True))
    return [replace(each, seconds=options.seconds, clients=options.clients) for each in rows]


def faults(
    path: Path, bodies: list[bytes], pixels: Tensor, options: argparse.Namespace
) -> list[ServingRow]:
    """Broken requests, then a crash under load: the server must answer as before."""
    patience = "--timeout", str(PATIENCE)
    with serving(path, options.threads, path.with_suffix(".log"), *patience) as server:
        probes = bodies[:PROBES]
        expected = asyncio.run(answers(server.port, probes))
        before = server.memory()
        started = time.perf_counter()
        outcomes = asyncio.run(send_broken(server.port, options.malformed, Broken(pixels)))
        seconds = time.perf_counter() - started
        unfit = {name: n for name, n in outcomes.items() if name[0] == "5" or name[0] == "n"}
        told = ", ".join(f"{name}: {n}" for name, n in sorted(outcomes.items()))
        after_faults = asyncio.run(answers(server.port, probes))
        grown = server.memory() - before
        rows = [
            ServingRow("broken requests", told, "", options.malformed, seconds=seconds),
            ServingRow(
                "answered with 5xx or not at all", "broken requests", "", sum(unfit.values()), 0
            ),
            ServingRow("tracebacks in the log", "broken requests", "", server.tracebacks(), 0),
            ServingRow("memory grown by", "broken requests", "MiB", grown),
            same("answers after broken requests", expected, after_faults),
        ]
        asyncio.run(crash(server, bodies, options.clients))
        server.start()
        restarted = asyncio.run(answers(server.port, probes))
    return [*rows, same("answers after kill -9 under load and restart", expected, restarted)]


async def crash(server: Server, bodies: Sequence[bytes], clients: int) -> None:
    """Kill the server while it answers; clients see their connections end."""
    work = asyncio.create_task(put_load(server.port, bodies, clients, 5, Load()))
    await asyncio.sleep(1)
    server.kill()
    await work


def same(name: str, expected: Sequence[bytes], found: Sequence[bytes]) -> ServingRow:
    """The share of answers that are the same to the last byte."""
    share = sum(a == b for a, b in zip(expected, found, strict=True)) / len(expected)
    return ServingRow(name, f"{len(expected)} images", "equal", share, 1.0, at_least=True)


def main() -> int:
    """Measure, show, write the rows; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="root of the data, with MNIST")
    parser.add_argument("--model", type=Path, help="a fitted DAEDL model; else one is trained")
    parser.add_argument("--seconds", type=float, default=60, help="of load, for each server")
    parser.add_argument("--slice", type=float, default=15, help="seconds of a turn")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--malformed", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2, help="of torch, in each server")
    parser.add_argument("--rows", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        with console.status("making the models"):
            paths = models(options.data, options.model, Path(folder))
            test = load("mnist", "test", options.data, download=False).images[-IMAGES:]
        bodies = [request(picture(pixels)) for pixels in test]
        with console.status(f"{options.clients} clients"):
            rows = loaded(paths, bodies, options)
        with console.status(f"{options.malformed} broken requests"):
            rows += faults(paths[0], bodies, test[0], options)
    return conclude(console, "Serving", rows, options.rows)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
