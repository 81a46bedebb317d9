"""Around every request: its time and status are counted, and browsers are told to be strict."""

import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daedl.serving.metrics import Metrics

# Nothing from elsewhere, no inline script: the page needs neither. A preview is a blob.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Watch:
    """Middleware of the plain kind: a class of Starlette's own would cost a task a request."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            # Unknown paths are anybody's choice: each would be a line of its own.
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requested(path, status, time.perf_counter() - started)
