"""Small files that contain large images: a PNG of 25 million pixels, one and several at once."""

import asyncio

import torch

from daedl_bench.memory import memory, reset_peak
from daedl_bench.robustness._place import Figure, Place, stripes
from daedl_bench.server import Load, Server, picture, put_load, request, serving

SIDE = 5000
TOGETHER = 8
LONGEST = 60.0  # seconds


def measure(place: Place) -> list[Figure]:
    """CPU time and peak memory of the server, beyond that before."""
    large = picture(torch.zeros(1, SIDE, SIDE, dtype=torch.uint8))
    bodies = [request(picture(pixels)) for pixels in stripes(8)[0]]
    with serving(place.model()) as server:
        asyncio.run(put_load(server.port, bodies, 1, LONGEST, Load(), len(bodies)))
        return [
            Figure("largest file", len(large) / 1024, None, "KiB"),
            *_sent(server, request(large), 1),
            *_sent(server, request(large), TOGETHER),
        ]


def _sent(server: Server, body: bytes, clients: int) -> list[Figure]:
    """Figures of `clients` that send the same request once each, at the same time."""
    load, process = Load(), server.process.pid
    before, cpu = reset_peak(process), server.cpu_seconds()
    asyncio.run(put_load(server.port, [body], clients, LONGEST, load, clients))
    return [
        Figure(f"requests not predicted, {clients} at once", _failed(load, clients), 0),
        Figure(f"CPU time, {clients} at once", server.cpu_seconds() - cpu, None, "s"),
        Figure(
            f"peak of memory, {clients} at once", memory("VmHWM", process) - before, None, "MiB"
        ),
    ]


def _failed(load: Load, number: int) -> int:
    """Requests without an answer, or with one other than 200."""
    return number - len(load.latencies) + load.errors.total()
