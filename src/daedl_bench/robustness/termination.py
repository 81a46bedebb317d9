"""SIGTERM while requests are in progress: all of them must be answered."""

import asyncio
import signal
import time

from daedl_bench.robustness._place import Figure, Place, stripes
from daedl_bench.server import Server, picture, request, response, serving

ROUNDS, CLIENTS = 4, 50
PAUSE = 0.5  # seconds before and after the signal
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def measure(place: Place) -> list[Figure]:
    """Half of the requests wait for the rest of their body, the others for their prediction."""
    body, model = picture(stripes(1)[0][0]), place.model()
    answered = sent = 0
    slowest = 0.0
    for _ in range(place.count(ROUNDS)):
        with serving(model) as server:
            statuses = asyncio.run(_interrupted(server, request(body)))
            signalled = time.perf_counter()
            server.process.wait(60)
            slowest = max(slowest, time.perf_counter() - signalled)
        sent += len(statuses)
        answered += statuses.count(200)
    return [
        Figure("requests in progress", sent),
        Figure("requests not answered", sent - answered, 0),
        Figure("longest until the end after the last answer", slowest, 10, "s"),
    ]


async def _interrupted(server: Server, data: bytes) -> list[int]:
    async def client(number: int, connection: Connection) -> int:
        reader, writer = connection
        writer.write(data[:-10])
        await received.wait()
        if number % 2:
            writer.write(data[-10:])
        await signalled.wait()
        if number % 2 == 0:
            writer.write(data[-10:])
        try:
            status, _ = await asyncio.wait_for(response(reader), 60)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            return 0
        writer.close()
        return status

    opened = (asyncio.open_connection("127.0.0.1", server.port) for _ in range(CLIENTS))
    connections = await asyncio.gather(*opened)  # all before the signal
    received, signalled = asyncio.Event(), asyncio.Event()
    clients = asyncio.gather(*map(client, range(CLIENTS), connections))
    await asyncio.sleep(PAUSE)
    received.set()
    await asyncio.sleep(0)  # the clients send the rest
    server.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(PAUSE)
    signalled.set()
    return await clients
