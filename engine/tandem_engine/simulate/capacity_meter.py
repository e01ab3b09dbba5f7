"""A simulated replica's measurements of its capacity, as often as a real one makes them."""

from math import inf
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import Slo
from tandem_engine.async_engine.capacity_question import (
    CapacityQuestion,
    Measure,
    MeasuredCapacity,
)
from tandem_engine.async_engine.load_sample import LoadSample
from tandem_engine.async_engine.timeline import Timeline
from tandem_engine.scheduler.latency.step_model import StepPrices
from tandem_engine.simulate.workload import Arrival, Shape

_PERIOD_S: Final = 45.0
"""Of measurements that take some seconds of a core, of which a replica takes a twentieth."""


class CapacityMeter:
    """Measures with the newest requests and prices.

    Args:
        measure: Answers a question.
        schedule: Of the replica.
        slo: Of the replica.
        num_blocks: Of the replica.
    """

    def __init__(
        self, measure: Measure, schedule: ScheduleConfig, slo: Slo, num_blocks: int
    ) -> None:
        self._measure = measure
        self._schedule, self._slo, self._num_blocks = schedule, slo, num_blocks
        self._sample = LoadSample()
        self._timelines: dict[str, Timeline] = {}
        self._measured: MeasuredCapacity | None = None
        self._measured_at = -inf

    def arrived(self, request_id: str, arrival: Arrival) -> None:
        """Note a request."""
        timeline = self._timelines[request_id] = Timeline(arrival.due_s)
        self._sample.arrived(arrival.shape.num_input, [timeline])

    def ended(self, request_id: str, shape: Shape) -> None:
        """Note the end of its answer."""
        timeline = self._timelines.pop(request_id)
        timeline.num_tokens, timeline.has_ended = shape.num_output, True

    def capacity(self, prices: StepPrices, now: float) -> MeasuredCapacity | None:
        """Return the newest capacity, measured now if it is time; None: too few have ended."""
        if self._slo.ttft is None or now < self._measured_at + _PERIOD_S:
            return self._measured
        requests, last = self._sample.lengths(), self._measured
        if not requests:
            return last
        self._measured_at = now
        self._measured = self._measure(
            CapacityQuestion(
                prices=prices,
                requests=requests,
                schedule=self._schedule,
                slo=self._slo,
                num_blocks=self._num_blocks,
                guess=(last and last.requests_per_s) or None,
            )
        )
        return self._measured
