"""ASGI middleware: bounded request bodies, security headers, and metrics of requests and predictions."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daedl.serving.predictor import Predictor, Record

# Seconds (chosen: from a small network alone to a large one under load).
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

# Seconds during which the rest of an unread body is discarded before the connection is closed (chosen).
# Closing at once would reset the connection, and the client could lose the response.
LINGER = 1.0

# No external resources and no inline scripts. The page previews images as blobs.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class ServerMetrics:
    """Prometheus metrics of one app, in a separate registry.

    Arguments:
        predictor: the model; metrics that it has no values for are omitted.
        window: number of recent predictions that rolling means are computed over.
        density_reference: mean density score of in-distribution images; by default the model's.
    """

    def __init__(self, predictor: Predictor, window: int, density_reference: float | None) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("daedl_requests", "Requests.", ["path", "status"], **own)
        text = "Seconds from the head of a request to the start of its response."
        self._seconds = Histogram("daedl_request_seconds", text, ["path"], buckets=BUCKETS, **own)
        self._predictions = Counter("daedl_predictions", "Predicted images.", **own)
        text = "Predictions that were not accepted."
        self._abstentions = Counter("daedl_abstentions", text, **own)
        self._scores: deque[float] = deque(maxlen=window)
        self._abstained: deque[bool] = deque(maxlen=window)
        thresholds = predictor.model.thresholds
        if thresholds is not None:
            text = f"Share of the last {window} predictions that were not accepted."
            self._gauge("abstention_rate", text, lambda: _mean(self._abstained))
            text = "Share of the calibration samples that were not accepted."
            self._gauge("abstention_rate_reference", text, lambda: 1 - thresholds.coverage)
        if predictor.has_density:
            text = f"Mean density score of the last {window} predictions; it decreases under drift."
            self._gauge("density_score_mean", text, lambda: _mean(self._scores))
        reference = predictor.density_reference if density_reference is None else density_reference
        if predictor.has_density and reference is not None:
            text = (
                "Mean density score of in-distribution images; by default of the training images."
            )
            self._gauge("density_score_reference", text, lambda: reference)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"daedl_{name}", text, registry=self.registry).set_function(value)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_predictions(self, records: Iterable[Record]) -> None:
        """Count predictions."""
        for record in records:
            self._predictions.inc()
            if record.get("density_score") is not None:
                self._scores.append(record["density_score"])
            if "accept" in record:
                self._abstained.append(not record["accept"])
                self._abstentions.inc(not record["accept"])

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def _mean(values: deque[float] | deque[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


class RequestTimer:
    """ASGI middleware that counts and times requests, and sets security headers on responses."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        # Clients choose unknown paths: one label each would let the metrics grow without bound.
        path = scope["path"] if scope["path"] in self._paths else "other"

        def count(status: int) -> None:
            self._metrics.count_request(path, status, time.perf_counter() - started)

        async def timed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        try:
            await self._app(scope, receive, timed_send)
        except Exception:
            count(500)  # the response is sent by the handler around all middleware
            raise


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
