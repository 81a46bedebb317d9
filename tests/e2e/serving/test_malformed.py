"""Random malformed requests to a running server.

DAEDL_MALFORMED is their number; the figure of 10,000 in docs/results.md is measured with it.
"""

import asyncio
import contextlib
import os
from collections import Counter

from app_client import running
from malformed import Malformed, picture, request

from daedl.serving import ServerConfig, create_app

NUMBER = int(os.environ.get("DAEDL_MALFORMED", "400"))
CONNECTIONS = 16  # at a time


async def outcome(port: int, data: bytes) -> str:
    """The status of the response, "closed" without one, or "timeout" after a minute."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        return head.split(b" ", 2)[1].decode()
    except (ConnectionError, asyncio.IncompleteReadError):
        return "closed"
    except TimeoutError:
        return "timeout"
    finally:
        writer.close()


async def outcomes(port: int, malformed: Malformed) -> Counter[str]:
    """Send `NUMBER` requests over several connections at a time."""
    counts: Counter[str] = Counter()
    left = iter(range(NUMBER))

    async def client() -> None:
        for _ in left:
            counts[await outcome(port, malformed())] += 1

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return counts


def answers(port: int, pixels) -> list[bytes]:
    """Responses to valid requests, one by one: in one batch they may differ in the last digit."""

    async def answer(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        writer.close()
        return body

    return [asyncio.run(answer(request(picture(each)))) for each in pixels]


def test_every_malformed_request_is_answered_and_changes_no_other_answer(model, pixels, capfd):
    with running(create_app(model, ServerConfig(timeout=0.5))) as url:
        port = int(url.rpartition(":")[2])
        before = answers(port, pixels)
        counts = asyncio.run(outcomes(port, Malformed(pixels[0])))
        assert answers(port, pixels) == before
    assert counts.total() == NUMBER
    assert not [name for name in counts if name[0] in "5t"], counts
    assert "Traceback" not in capfd.readouterr().err
