"""The HTTP layer's own numbers. Plain data: the Prometheus objects are made at each scrape."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

UNKNOWN: Final = "unknown"
"""The label of a path or method that no route has."""

_STARTED_S: Final = time.time()


class ResponseCounts:
    """Responses by route, method and status code."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def record(self, path: str, method: str, status: int) -> None:
        """Count a response; `path` is the route's template, so that there are few of them."""
        self._counts[path, method, status] += 1

    def items(self) -> list[tuple[tuple[str, str, int], int]]:
        """(path, method, status code) → responses, sorted."""
        return sorted(self._counts.items())


class _Snapshot(Collector):
    """Shows numbers at one moment to a registry that lives as long as one scrape."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def exposition(counts: ResponseCounts, *, num_refused: int, num_in_flight: int) -> bytes:
    """The numbers in Prometheus' text format."""
    refused = CounterMetricFamily(
        "tandem_http_requests_refused",
        "Slots that were requested and not granted (429).",
        value=num_refused,
    )
    in_flight = GaugeMetricFamily(
        "tandem_http_requests_in_flight",
        "Slots in use: each choice and beam of each prompt in process or waiting.",
        value=num_in_flight,
    )
    # A counter that falls belongs to another process; a text that does not get newer is stuck.
    started = GaugeMetricFamily(
        "process_start_time_seconds", "Unix time at which this process started.", value=_STARTED_S
    )
    exposed = GaugeMetricFamily(
        "tandem_exposition_timestamp_seconds",
        "Unix time at which these metrics were made.",
        value=time.time(),
    )
    registry = CollectorRegistry()
    registry.register(_Snapshot([_responses(counts), refused, in_flight, started, exposed]))
    return generate_latest(registry)


def _responses(counts: ResponseCounts) -> Metric:
    family = CounterMetricFamily(
        "tandem_http_requests",
        "HTTP requests by path, method and status code (499: the caller disconnected).",
        labels=["path", "method", "code"],
    )
    for (path, method, status), count in counts.items():
        family.add_metric([path, method, str(status)], count)
    return family
