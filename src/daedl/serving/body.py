"""Request bodies: bounded in size, and connections closed where a body was not read."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Seconds during which the rest of an unread body is discarded before the connection is closed (chosen).
# Closing at once would reset the connection, and the client could lose the response.
LINGER = 1.0


class BodyLimit:
    """ASGI middleware that bounds request bodies.

    A body is read only as far as the application requests it, and at most up to `max_bytes`. If the
    response is sent before the body is complete, the connection is closed: its client could otherwise
    hold it open by sending the rest byte by byte.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request with a limited `receive` and a closing `send`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = int(headers.get("content-length", 0))
        complete = announced == 0 and "transfer-encoding" not in headers
        size = 0

        async def limited_receive() -> Message:
            nonlocal complete, size
            self._check_size(announced)
            message = await receive()
            if message["type"] == "http.disconnect":
                if not complete:
                    raise HTTPException(400, "the connection ended; expected the complete body")
                return message
            complete = not message.get("more_body", False)
            size += len(message.get("body", b""))
            self._check_size(size)
            return message

        async def closing_send(message: Message) -> None:
            if not complete and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            elif not complete and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await _discard(receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, limited_receive, closing_send)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise HTTPException(
                413,
                f"the body has at least {size:,} bytes; expected at most {self._max_bytes:,}: reduce the "
                "size of the image, or send fewer images per request",
            )


async def _discard(receive: Receive) -> None:
    """Discard the rest of a body, for at most `LINGER` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            while (await receive()).get("more_body", False):
                await asyncio.sleep(0)  # a `receive` that never suspends would block the timeout
