"""Prometheus compared with a replica's own /metrics: it must lie between two readings; pure.

A counter of requests only grows while a process lives. So what Prometheus scraped from a replica
after one reading and before another is between them. Prometheus is asked before the second
reading, so only the lower bound depends on clocks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tandem_operator.autoscaler.exposition import Reading
from tandem_operator.autoscaler.signals import PodSample
from tandem_operator.scaling_law.observation import SignalProblem

CLOCK_TOLERANCE_S: Final = 5.0
"""Seconds by which the clocks of Prometheus and of the operator may differ."""

_ROUNDING: Final = 1e-6
_SAME_START_S: Final = 1.0
_REMADE_S: Final = 2.0
"""Seconds after which a replica has surely made its metrics once more; it does so five times a
second."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason for not trusting the figures, with its sentence."""

    problem: SignalProblem
    message: str


def next_pod(pods: Sequence[str], before: str | None) -> str | None:
    """Return the replica to read next, one after the other; None: there is none."""
    ordered = sorted(pods)
    later = (pod for pod in ordered if before is None or pod > before)
    return next(later, ordered[0] if ordered else None)


def compare(pod: str, sample: PodSample, before: Reading | None, after: Reading) -> Doubt | None:
    """Return the reason why Prometheus' sample of a replica cannot be its own; None: it may be.

    `before` and `after` are readings of the replica's own metrics, before and after the query.
    """
    if before is not None and (doubt := _stuck(pod, before, after)):
        return doubt
    low, high = _bounds(sample, before, after)
    if low - _ROUNDING <= sample.received <= high + _ROUNDING:
        return None
    return Doubt(
        SignalProblem.DISAGREEING,
        f"Prometheus has {sample.received:.0f} requests of replica {pod}, whose own metrics allow "
        f"{_range_text(low, high)}",
    )


def _bounds(sample: PodSample, before: Reading | None, after: Reading) -> tuple[float, float]:
    """Return the least and the most requests that the sample may have."""
    if _is_newer(sample.started_at, after.started_at):
        # Of a process that the replica itself does not know: no number is right.
        return math.inf, -math.inf
    if _is_newer(after.started_at, sample.started_at):
        # Scraped from the process before; a counter begins at 0 with each.
        return 0.0, math.inf
    has_restarted = before is not None and (
        _is_newer(after.started_at, before.started_at) or after.received < before.received
    )
    if has_restarted or before is None:
        return 0.0, math.inf if has_restarted and sample.started_at is None else after.received
    is_later = sample.scraped_at >= before.read_at + CLOCK_TOLERANCE_S
    return before.received if is_later else 0.0, after.received


def _range_text(low: float, high: float) -> str:
    if low > high:
        return "none: its process started earlier"
    return f"{low:.0f} to {high:.0f}"


def stuck_sample(pod: str, sample: PodSample, max_age_s: float) -> Doubt | None:
    """Return the reason for not trusting a sample that was old when it was scraped.

    Where the moment of its making moves on, only the replica's clock is behind.
    """
    if sample.exposed_at is None or sample.scraped_at - sample.exposed_at <= max_age_s:
        return None
    if sample.exposures:
        return None
    age_s = sample.scraped_at - sample.exposed_at
    return Doubt(
        SignalProblem.STALE,
        f"replica {pod} shows metrics that were {age_s:.0f} s old when they were scraped, "
        f"more than {max_age_s:.0f}",
    )


def _stuck(pod: str, before: Reading, after: Reading) -> Doubt | None:
    """Return the reason for not trusting a replica that shows the same text again and again."""
    if after.exposed_at is None or before.exposed_at is None:
        return None
    apart_s = after.read_at - before.read_at
    if after.exposed_at != before.exposed_at or apart_s < _REMADE_S:
        return None
    return Doubt(
        SignalProblem.STALE,
        f"replica {pod} shows the same metrics for {apart_s:.0f} s",
    )


def _is_newer(started_at: float | None, than: float | None) -> bool:
    return started_at is not None and than is not None and started_at > than + _SAME_START_S
