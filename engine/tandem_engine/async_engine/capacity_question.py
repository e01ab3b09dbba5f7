"""What a replica tells about itself to have its capacity measured, and the answer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import Slo
from tandem_engine.scheduler.latency.step_model import StepPrices


class RequestLengths(NamedTuple):
    """One request, in tokens."""

    prompt: int
    """Of the prompt."""
    cached: int
    """Of those, what the prefix cache had."""
    output: int
    """Of the answer; at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class CapacityQuestion:
    """A replica and its load; the highest rate that keeps the targets is asked for."""

    prices: StepPrices
    """Prices of steps."""
    requests: Sequence[RequestLengths]
    """Some that are as those to come."""
    schedule: ScheduleConfig
    """The settings in force."""
    slo: Slo
    """The targets, with one of TTFT: without it no queue is too long."""
    num_blocks: int
    """KV blocks of the replica."""
    guess: float | None = None
    """Requests a second to begin the search with; None: those of a replica that serves one after
    the other."""


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class MeasuredCapacity:
    """The highest rate that kept the targets."""

    requests_per_s: float
    """0: not even single requests keep them."""
    concurrency: float
    """Requests in process or waiting at that rate, on average; 0 where the rate is."""
    cpu_s: float = 0.0
    """Seconds of a core that measuring it took."""


Measurement = tuple[CapacityQuestion, MeasuredCapacity]
"""A question, and its answer."""

Measure = Callable[[CapacityQuestion], MeasuredCapacity]
"""Answers a question."""
