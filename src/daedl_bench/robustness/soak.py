"""Many valid requests to one server, whose memory is measured before and after."""

import asyncio

from daedl_bench.robustness._place import Figure, Place, stripes
from daedl_bench.server import Load, picture, put_load, request, serving

REQUESTS, WARM_UP, CLIENTS = 20_000, 1000, 32
LONGEST = 600.0  # seconds


def measure(place: Place) -> list[Figure]:
    """Memory is compared with that after `WARM_UP` requests."""
    bodies = [request(picture(pixels)) for pixels in stripes(256)[0]]
    log, load = place.folder / "log", Load()
    with serving(place.model(), log=log) as server:
        warm_up = place.count(WARM_UP)
        asyncio.run(put_load(server.port, bodies, CLIENTS, LONGEST, Load(), warm_up))
        before, number = server.memory(), place.count(REQUESTS)
        asyncio.run(put_load(server.port, bodies, CLIENTS, LONGEST, load, number))
        after = server.memory()
    return [
        Figure("requests", len(load.latencies)),
        Figure("errors", load.errors.total() + number - len(load.latencies), 0),
        Figure("requests a second", load.rate, None, "1/s"),
        Figure("memory before", before, None, "MiB"),
        Figure("memory growth", after - before, 20, "MiB"),
        Figure("lines in the log", len(log.read_text("utf-8").splitlines()), 0),
    ]
