"""Metrics in Prometheus' text format: requests, latency, abstentions, and density scores for drift."""

import math
from collections import deque
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from daedl.selective import Thresholds
from daedl.serving.batcher import Answer

# Seconds (chosen: from a small network alone to a large one under load).
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counts of one app, in a registry of its own.

    Arguments:
        window: predictions that rolling means are taken over.
        thresholds: of the model, if it is calibrated.
        has_density: whether its predictions have density scores.
        density_reference: their mean on training images, each left out of its own fit, if known.
    """

    def __init__(
        self,
        window: int,
        thresholds: Thresholds | None,
        has_density: bool,
        density_reference: float | None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "daedl_requests", "Requests.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "daedl_request_seconds",
            "Seconds from a request's head to the end of its answer.",
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
        last = f"the last {window} predictions"
        if thresholds is not None:
            self._gauge(
                "abstention_rate", f"Share of {last} not accepted.", lambda: _mean(self._abstained)
            )
            self._gauge(
                "abstention_rate_reference",
                "Share of the calibration images not accepted.",
                lambda: 1 - thresholds.coverage,
            )
        if has_density:
            self._gauge(
                "density_score_mean",
                f"Mean density score of {last}; it falls as inputs drift away from the training data.",
                lambda: _mean(self._scores),
            )
        if has_density and density_reference is not None:
            self._gauge(
                "density_score_reference",
                "Mean density score of known images; by default of the training images, as if they were new.",
                lambda: density_reference,
            )

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(f"daedl_{name}", text, registry=self.registry).set_function(value)

    def requested(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def predicted(self, answers: Iterable[Answer]) -> None:
        """Count predictions that were given."""
        for answer in answers:
            self._predictions.inc()
            if answer["density_score"] is not None:
                self._scores.append(answer["density_score"])
            if answer["accept"] is not None:
                self._abstained.append(not answer["accept"])
                self._abstentions.inc(not answer["accept"])

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


def _mean(values: deque[float] | deque[bool]) -> float:
    return sum(values) / len(values) if values else math.nan
