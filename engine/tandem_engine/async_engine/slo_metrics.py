"""Series of the latency targets: who kept them, and what the replica is predicted to carry."""

from collections.abc import Iterator
from math import inf
from typing import Final

from prometheus_client.core import Metric

from tandem_engine.api.slo import Slo
from tandem_engine.async_engine.capacity_question import MeasuredCapacity
from tandem_engine.async_engine.families import Families
from tandem_engine.scheduler.latency.capacity import (
    ReplicaLimits,
    RequestShape,
    capacity,
    zero_load_tpot_s,
    zero_load_ttft_s,
)
from tandem_engine.scheduler.latency.step_model import StepPrices

RESULTS: Final = ("met", "ttft", "tpot", "both", "failed")
"""The ends of a request: all targets met, which one was missed, or both, or no answer."""

_FAILED: Final = 4


class SloResults:
    """Counts requests by the targets that they met.

    The counts outlive a change of targets: each request is judged by those in force at its end, and
    not counted where there are none.
    """

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self._counts = [0] * len(RESULTS)
        self.set_slo(slo)

    def set_slo(self, slo: Slo) -> None:
        """Judge by other targets from now on."""
        self.slo = slo
        self._ttft_s = inf if slo.ttft_s is None else slo.ttft_s
        self._tpot_s = inf if slo.tpot_s is None else slo.tpot_s
        self._counts_any = slo.is_given

    def finished(self, ttft_s: float | None, tpot_s: float | None) -> None:
        """Count a request that ended well; a latency that it does not have meets its target."""
        is_late = ttft_s is not None and ttft_s > self._ttft_s
        is_slow = tpot_s is not None and tpot_s > self._tpot_s
        self._counts[is_late + 2 * is_slow] += self._counts_any

    def failed(self, num_requests: int = 1) -> None:
        """Count requests that failed or exceeded their deadline."""
        self._counts[_FAILED] += num_requests * self._counts_any

    def collect(self, families: Families) -> Iterator[Metric]:
        """All series; none without a target."""
        if not self.slo.is_given:
            return
        yield families.counters(
            "slo_requests",
            "Requests that ended, by the targets that they met or missed.",
            "result",
            dict(zip(RESULTS, self._counts, strict=True)),
        )
        targets = {"ttft": self.slo.ttft, "tpot": self.slo.tpot}
        given = {name: target for name, target in targets.items() if target is not None}
        yield families.gauges(
            "slo_target_seconds",
            "Latency targets.",
            "target",
            {name: target.target_s for name, target in given.items()},
        )
        yield families.gauges(
            "slo_percentile",
            "Percent of requests that are to keep a target.",
            "target",
            {name: target.percentile for name, target in given.items()},
        )


def predictions(
    families: Families,
    *,
    prices: StepPrices,
    shape: RequestShape,
    limits: ReplicaLimits,
    slo: Slo,
    pace: float,
    measured: MeasuredCapacity | None = None,
) -> Iterator[Metric]:
    """Yield what the replica's model of step times says of requests of one shape.

    Args:
        families: Makes the series.
        prices: The model.
        shape: Mean lengths of the requests.
        limits: Limits of the replica.
        slo: The targets.
        pace: Share of the TPOT target that steps may take.
        measured: The capacity; None: it is computed.
    """
    yield families.gauge(
        "predicted_zero_load_ttft_seconds",
        "Predicted TTFT of a mean recent request that has the replica for itself.",
        zero_load_ttft_s(prices, shape, limits),
    )
    yield families.gauge(
        "predicted_zero_load_tpot_seconds",
        "Predicted TPOT of a mean recent request that has the replica for itself.",
        zero_load_tpot_s(prices, shape),
    )
    if slo.is_given:
        most = measured or capacity(prices, shape, limits, slo, pace=pace)
        yield families.gauge(
            "predicted_capacity_requests_per_second",
            "Highest rate of requests as they were of late that is predicted to keep the targets.",
            most.requests_per_s,
        )
        yield families.gauge(
            "predicted_capacity_concurrency",
            "Requests that are predicted to be in process or waiting at that rate, on average.",
            most.concurrency,
        )
