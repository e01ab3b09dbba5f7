"""Series by the priority of requests: one of five numbers, whatever callers send."""

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from tandem_engine.api.request import HIGHEST_PRIORITY, LOWEST_PRIORITY
from tandem_engine.api.slo import Slo
from tandem_engine.async_engine import buckets
from tandem_engine.async_engine.families import Families
from tandem_engine.async_engine.histogram import Histogram
from tandem_engine.async_engine.timeline import Timeline


class PriorityMetrics:
    """Demand and latencies of each priority that has had a request.

    Args:
        model_name: The value of the label that all series have.
    """

    def __init__(self, model_name: str) -> None:
        self._model = model_name
        priorities = range(HIGHEST_PRIORITY, LOWEST_PRIORITY + 1)
        self._received = dict.fromkeys(priorities, 0)
        self._ttft = {
            priority: Histogram(
                "time_to_first_token_by_priority_seconds", "TTFT by priority.", buckets.TTFT
            )
            for priority in priorities
        }
        self._tpot = {
            priority: Histogram(
                "time_per_output_token_by_priority_seconds",
                "TPOT of a request by priority.",
                buckets.TPOT,
            )
            for priority in priorities
        }

    def set_edges(self, slo: Slo) -> None:
        """Let a bucket end at each target."""
        for ttft, tpot in zip(self._ttft.values(), self._tpot.values(), strict=True):
            ttft.set_edge(slo.ttft_s)
            tpot.set_edge(slo.tpot_s)

    def received(self, priority: int, num_choices: int) -> None:
        """Count the choices of a request that was taken."""
        self._received[priority] += num_choices

    def first_token(self, timeline: Timeline) -> None:
        """Note that a choice has its first token."""
        if timeline.ttft is not None:
            self._ttft[timeline.priority].observe(timeline.ttft)

    def finished(self, timeline: Timeline) -> None:
        """Note that a choice ended well."""
        if timeline.tpot is not None:
            self._tpot[timeline.priority].observe(timeline.tpot)

    def series(self, families: Families) -> Iterator[Metric]:
        """Yield the series of the priorities that have had a request."""
        seen = [priority for priority, number in self._received.items() if number]
        if not seen:
            return
        yield families.counters(
            "request_received_by_priority",
            "Requests taken, by priority.",
            "priority",
            {str(priority): self._received[priority] for priority in seen},
        )
        for histograms in (self._ttft, self._tpot):
            yield self._family({priority: histograms[priority] for priority in seen})

    def _family(self, histograms: dict[int, Histogram]) -> HistogramMetricFamily:
        first, *others = histograms.items()
        family = first[1].family(self._model, priority=str(first[0]))
        for priority, histogram in others:
            histogram.add_to(family, self._model, str(priority))
        return family
