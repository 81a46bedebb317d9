"""`daedl serve` in a separate process, and clients that put load on it."""

import asyncio
import contextlib
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from PIL import Image
from torch import Tensor

from daedl_bench.memory import memory


@dataclass(frozen=True)
class Server:
    """A running server; `log` is the file with its stderr."""

    process: subprocess.Popen[str]
    port: int
    log: Path | None

    def memory(self) -> float:
        """Resident memory in MiB; Linux only."""
        return memory(process=self.process.pid)

    def cpu_seconds(self) -> float:
        """CPU time since its start, of all threads; Linux only."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text("utf-8").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """Open file descriptors; Linux only."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def limit_descriptors(self, number: int) -> None:
        """Allow the server `number` file descriptors; Linux only."""
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (number, number))


@contextlib.contextmanager
def serving(
    model: Path, *options: str, threads: int = 1, log: Path | None = None, **env: str
) -> Iterator[Server]:
    """Run `daedl serve` at a free port of this machine."""
    command = [sys.executable, "-m", "daedl", "serve", str(model), "--port", "0"]
    with contextlib.ExitStack() as stack:
        stderr = stack.enter_context(log.open("wb")) if log else None
        process = stack.enter_context(
            subprocess.Popen(
                [*command, "--threads", str(threads), *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            )
        )
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = re.search(r":(\d+)$", line.strip())
            if found is None:
                raise RuntimeError(f"the server printed {line!r}; expected its address")
            yield Server(process, int(found[1]), log)
        finally:
            process.kill()


def picture(pixels: Tensor, kind: str = "PNG") -> bytes:
    """Pixels (1, H, W), uint8, as an image file."""
    buffer = BytesIO()
    Image.fromarray(pixels[0].numpy()).save(buffer, kind)
    return buffer.getvalue()


def request(body: bytes, kind: str = "image/png", path: str = "/predict") -> bytes:
    """A complete HTTP request."""
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
    """Latencies and errors that clients observed."""

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds


async def put_load(
    port: int,
    bodies: Sequence[bytes],
    clients: int,
    seconds: float,
    to: Load,
    number: int | None = None,
) -> None:
    """Run `clients` that send a request whenever the last one is answered; ends after `number` requests."""
    started = time.perf_counter()
    requests = iter(range(sys.maxsize if number is None else number))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for each in requests:
            if (sent := time.perf_counter()) > started + seconds:
                break
            writer.write(bodies[each % len(bodies)])
            status, _ = await response(reader)
            to.latencies.append(time.perf_counter() - sent)
            if status != 200:
                to.errors[str(status)] += 1
        writer.close()

    ended = await asyncio.gather(*(client() for _ in range(clients)), return_exceptions=True)
    to.errors.update(type(each).__name__ for each in ended if isinstance(each, BaseException))
    to.seconds += time.perf_counter() - started
