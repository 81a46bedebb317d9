"""Malformed HTTP requests: each must be answered or rejected, and must change no other answer."""

import asyncio
import contextlib
from collections import Counter

from daedl_bench.robustness._malformed import Malformed
from daedl_bench.robustness._place import Figure, Place, stripes
from daedl_bench.server import picture, request, response, serving

REQUESTS = 5000
CONNECTIONS = 16  # at a time
ANSWERS = 50  # that are compared before and after


def measure(place: Place) -> list[Figure]:
    """Counts statuses, and compares answers to valid requests and memory before and after."""
    pixels, log = stripes(ANSWERS)[0], place.folder / "log"
    with serving(place.model(), "--timeout", "10", log=log) as server:
        before, memory = _answers(server.port, pixels), server.memory()
        counts = asyncio.run(_outcomes(server.port, Malformed(pixels[0]), place.count(REQUESTS)))
        changed = sum(a != b for a, b in zip(before, _answers(server.port, pixels), strict=True))
        growth = server.memory() - memory
    answered = sum(number for name, number in counts.items() if name[0] in "24")
    return [
        Figure("requests", counts.total()),
        Figure("answered with 2xx or 4xx", answered),
        Figure("rejected by closing the connection", counts["closed"]),
        Figure("answered with 5xx, or not within a minute", _failed(counts), 0),
        Figure("other answers changed", changed, 0),
        Figure("memory growth", growth, None, "MiB"),
        Figure("lines in the log", len(log.read_text("utf-8").splitlines()), 0),
    ]


def _failed(counts: Counter[str]) -> int:
    return counts.total() - sum(
        number for name, number in counts.items() if name[0] in "24" or name == "closed"
    )


async def _outcome(port: int, data: bytes) -> str:
    """The status of the response, "closed" without one, or "timeout" after a minute."""
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
        return "timeout"
    finally:
        writer.close()


async def _outcomes(port: int, malformed: Malformed, number: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    left = iter(range(number))

    async def client() -> None:
        for _ in left:
            counts[await _outcome(port, malformed())] += 1

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return counts


def _answers(port: int, pixels: object) -> list[bytes]:
    """Answers to valid requests, one by one: in one batch they may differ in the last digit."""

    async def answer(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        _, body = await response(reader)
        writer.close()
        return body

    return [asyncio.run(answer(request(picture(each)))) for each in pixels]  # type: ignore[attr-defined]
