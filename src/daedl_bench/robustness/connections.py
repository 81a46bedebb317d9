"""Clients without a token that send bodies without end, or don't read answers."""

import asyncio
import contextlib
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from daedl_bench.robustness._place import Figure, Place
from daedl_bench.server import Server, serving

CONNECTIONS = 500
DESCRIPTORS = 256
PAUSE = 2.0  # seconds between two bytes of a body
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
LONGEST = 60.0  # seconds for an answer of /health, or for all attempts
# Clients that don't read send 2, 4, ... requests: some fill the kernel's buffers of this connection, which
# Linux enlarges to some MB, and only a part of the server's.
READERS, MOST, PIPELINED = 100, 200, b"GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMALL = 2048  # bytes of their receive buffers
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def measure(place: Place) -> list[Figure]:
    """Run both attacks; poll /health until all connections of an attack are closed."""
    log = place.folder / "log"
    model = place.model()
    with serving(model, log=log, DAEDL_TOKEN="secret") as server:
        server.limit_descriptors(DESCRIPTORS)
        _health(server.port)  # the server has started
        closed, answers = asyncio.run(_attack(server.port, place.count(CONNECTIONS)))
    # More connections than clients, so that none is closed in favour of another one.
    options = "--max-connections", str(2 * READERS)
    with serving(model, *options, log=place.folder / "unread", DAEDL_TOKEN="secret") as server:
        _health(server.port)
        seconds, meanwhile = _unread(server, place.count(READERS))
    answers += meanwhile
    lines = [line for each in ("log", "unread") for line in _lines(place.folder / each)]
    return [
        Figure("connections", len(closed)),
        Figure("longest until closed", max(closed), 15, "s"),
        Figure("clients that don't read", place.count(READERS)),
        Figure("longest until their connections were closed", seconds, 30, "s"),
        Figure("requests to /health meanwhile", len(answers)),
        Figure(
            "connections to /health closed too early", sum(each.attempts - 1 for each in answers)
        ),
        Figure("longest until /health answered", max(each.seconds for each in answers), 1, "s"),
        Figure("lines in the log", len(lines), 1),
    ]


class Answer(NamedTuple):
    """Seconds until /health answered, and attempts."""

    seconds: float
    attempts: int


async def _attack(port: int, number: int) -> tuple[list[float], list[Answer]]:
    """Seconds until each connection was closed, and answers of /health."""
    attack = asyncio.gather(*(_unfinished(port) for _ in range(number)))
    answers = []
    while not attack.done():
        answers.append(await asyncio.to_thread(_health, port))
        await asyncio.sleep(0.05)
    return attack.result(), answers


def _unread(server: Server, number: int) -> tuple[float, list[Answer]]:
    """Seconds until the server has closed connections whose clients don't read, and answers of /health."""
    before, answers = server.descriptors(), []
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        for count in np.linspace(2, MOST, number, dtype=int):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            client.connect(("127.0.0.1", server.port))
            client.sendall(PIPELINED * int(count))
        while (seconds := time.perf_counter() - started) < LONGEST:
            answers.append(_health(server.port))
            if server.descriptors() <= before:
                break
            time.sleep(0.05)
    return seconds, answers


async def _unfinished(port: int) -> float:
    started = time.perf_counter()
    with contextlib.suppress(ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        closed = asyncio.ensure_future(reader.read())
        while not (await asyncio.wait([closed], timeout=PAUSE))[0]:
            writer.write(b"x")
        closed.result()
        writer.close()
    return time.perf_counter() - started


def _health(port: int) -> Answer:
    """Ask until there is an answer: a connection may be closed before its request arrives."""
    started, attempts = time.perf_counter(), 0
    while (seconds := time.perf_counter() - started) < LONGEST:
        attempts += 1
        with contextlib.suppress(OSError), closing(_connect(port)) as connection:
            connection.sendall(HEALTH)
            if connection.recv(65536).startswith(b"HTTP/1.1 200"):
                return Answer(time.perf_counter() - started, attempts)
    return Answer(seconds, attempts)


def _lines(log: Path) -> list[str]:
    return log.read_text("utf-8").splitlines()


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LONGEST)
