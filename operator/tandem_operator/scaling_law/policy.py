"""Limits and windows that hold for the decisions of one service; pure."""

import math
from dataclasses import dataclass, fields

_AT_LEAST: dict[str, float] = {
    "min_replicas": 0,
    "max_step_up": 1,
    "max_growth": 1,
    "max_step_down": 1,
    "up_window_s": 0,
    "down_window_s": 0,
    "idle_window_s": 0,
    "settle_s": 1,
    "min_samples": 1,
    "max_age_s": 0,
    "hysteresis": 1,
    "drain_s": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """Bounds, steps and windows of one service."""

    min_replicas: int = 1
    """Lowest number of replicas; the schedule of minimums is already in it."""

    max_replicas: int
    """Highest number of replicas."""

    max_step_up: int = 4
    """Replicas that may be added within `up_window_s`."""

    max_growth: float = 2.0
    """Factor by which the number may grow within `up_window_s`, where that is more."""

    max_step_down: int = 1
    """Replicas that one decision may remove."""

    max_shrink: float = 0.5
    """Share of the replicas that one decision may remove, where that is more."""

    up_window_s: float = 30.0
    """Seconds for which more replicas must have been recommended before they are added, unless load
    and latencies both ask for them."""

    down_window_s: float = 60.0
    """Seconds for which fewer replicas must have been recommended before one is removed; a measured
    cold start that takes longer makes it longer."""

    idle_window_s: float = 180.0
    """Seconds without a request before the last replica is removed, at least: clients that were
    told to come again must find it."""

    settle_s: float = 60.0
    """Seconds that measured latencies reach back: for so long after a change they still describe
    the time before it."""

    min_samples: int = 20
    """Requests from which on a measured latency counts."""

    max_age_s: float = 60.0
    """Seconds from which on a measurement is stale."""

    late_share: float = 0.1
    """Share of the requests that may miss a target."""

    hysteresis: float = 1.1
    """Factor that the remaining replicas have room for when some are removed: on latencies, queue
    and load."""

    max_kv_usage: float = 0.9
    """Usage of the KV cache that the remaining replicas may reach when one is removed."""

    drain_s: float = 120.0
    """Seconds in which a queue is to be drained, beside the load that goes on."""

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check(field.name)
        if self.max_replicas < max(1, self.min_replicas):
            raise ValueError(
                f"max_replicas is {self.max_replicas}, below min_replicas {self.min_replicas}; "
                "raise it, or lower min_replicas"
            )
        if not 0 < self.max_kv_usage <= 1:
            # Usage never exceeds 1: a higher limit would never be reached.
            raise ValueError(
                f"max_kv_usage is {self.max_kv_usage}; it is a share, above 0 and at most 1"
            )
        if not 0 < self.late_share < 1:
            raise ValueError(f"late_share is {self.late_share}; it is a share, above 0 and below 1")
        if not 0 <= self.max_shrink < 1:
            raise ValueError(f"max_shrink is {self.max_shrink}; it is a share, from 0 to below 1")

    def _check(self, name: str) -> None:
        value, lowest = getattr(self, name), _AT_LEAST.get(name)
        if value is None:
            return
        if not math.isfinite(value) or (lowest is not None and value < lowest):
            raise ValueError(f"{name} is {value}; it is a finite number of at least {lowest or 0}")
