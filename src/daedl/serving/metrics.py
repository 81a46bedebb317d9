"""Prometheus metrics: requests, latency, rejected predictions, and density scores to detect drift."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daedl.serving.predictor import Predictor, Record

# Seconds (chosen: from a small network alone to a large one under load).
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

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
    """Metrics of one app, in a registry of its own.

    Arguments:
        predictor: the model; metrics that it has no values for are omitted.
        window: number of recent predictions that rolling means are computed over.
        density_reference: mean density score of in-distribution images; by default the model's.
    """

    def __init__(self, predictor: Predictor, window: int, density_reference: float | None) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "daedl_requests", "Requests.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "daedl_request_seconds",
            "Seconds from the head of a request to the start of its response.",
            ["path"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._predictions = Counter(
            "daedl_predictions", "Predicted images.", registry=self.registry
        )
        self._abstentions = Counter(
            "daedl_abstentions", "Predictions that were not accepted.", registry=self.registry
        )
        self._scores: deque[float] = deque(maxlen=window)
        self._abstained: deque[bool] = deque(maxlen=window)
        thresholds = predictor.model.thresholds
        reference = predictor.density_reference if density_reference is None else density_reference
        if thresholds is not None:
            self._gauge(
                "abstention_rate",
                f"Share of the last {window} predictions that were not accepted.",
                lambda: _mean(self._abstained),
            )
            self._gauge(
                "abstention_rate_reference",
                "Share of the calibration images that were not accepted.",
                lambda: 1 - thresholds.coverage,
            )
        if predictor.has_density:
            self._gauge(
                "density_score_mean",
                f"Mean density score of the last {window} predictions; it decreases under drift.",
                lambda: _mean(self._scores),
            )
        if predictor.has_density and reference is not None:
            self._gauge(
                "density_score_reference",
                "Mean density score of in-distribution images; by default of the training images, "
                "leave-one-out.",
                lambda: reference,
            )

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
            if record["density_score"] is not None:
                self._scores.append(record["density_score"])
            if record["accept"] is not None:
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
