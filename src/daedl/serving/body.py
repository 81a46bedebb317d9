"""A request's body: read within its limits of size and time, before anything is made of it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from daedl.serving.errors import RequestError
from daedl.serving.settings import Settings

Receive = Callable[[], Awaitable[Mapping[str, Any]]]


async def read_body(headers: Mapping[str, str], receive: Receive, settings: Settings) -> bytes:
    """The whole body, of at most `max_bytes`; what is announced as larger isn't read at all."""
    _require_plain(headers)
    announced = headers.get("content-length", "0")
    if not announced.isdecimal():
        raise RequestError(400, f"the Content-Length is {announced!r}; expected a number of bytes")
    if int(announced) > settings.max_bytes:
        raise _too_large(int(announced), settings)
    try:
        async with asyncio.timeout(settings.timeout):
            return await _gathered(receive, settings)
    except TimeoutError:
        # The connection can't be used again: the rest of the body may still come.
        raise RequestError(
            408,
            f"the body didn't arrive within {settings.timeout:g} s; expected it whole: send it faster, "
            "or make it smaller",
            {"Connection": "close"},
        ) from None


async def _gathered(receive: Receive, settings: Settings) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(
                400, "the connection ended within the body; expected the whole of it"
            )
        body += message.get("body", b"")
        if len(body) > settings.max_bytes:
            raise _too_large(len(body), settings)
        more = message.get("more_body", False)
    return bytes(body)


def _require_plain(headers: Mapping[str, str]) -> None:
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(
            415,
            f"the body is encoded with {encoding[:40]!r}; expected it as it is: don't compress it",
        )


def _too_large(size: int, settings: Settings) -> RequestError:
    return RequestError(
        413,
        f"the body has {size:,} bytes or more; expected at most {settings.max_bytes:,}: make the image "
        "smaller, or send fewer at a time",
    )
