"""A fleet as an autoscaler sees it: signals over a window, from what its replicas did.

The fields are those of the autoscaler's own Observation, and what other laws read beside them.
Percentiles are exact; Prometheus interpolates between edges, of which one is the target.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandem_engine.simulate.replica import Predictions, Progress, ReplicaState
from tandem_engine.simulate.workload import Arrival, Shape

_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A latency target."""

    target_s: float
    percentile: float = 90.0
    """Share of requests, in percent, that keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySignal:
    """A latency over the window."""

    value_s: float
    """At the target's percentile."""
    target_s: float
    num_samples: int
    age_s: float
    """Age of the newest sample."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica as its gauges show it."""

    number: int
    """Tells it from the others."""
    size: int
    """Replicas that are in this state."""
    state: ReplicaState


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObservation:
    """A fleet at one moment."""

    ttft: LatencySignal | None
    tpot: LatencySignal | None
    queue_age_s: float
    """Age of the oldest request that has had no step yet, of any replica."""
    arrival_rate: float
    """Requests a second, at arrival."""
    capacity_per_replica: float | None
    """Requests a second within the targets, by the replicas' own models; None: unknown yet."""
    concurrency_per_replica: float | None
    """Requests in process or waiting at that rate, on average."""
    zero_load_ttft_s: float | None
    zero_load_tpot_s: float | None
    kv_usage: float | None
    """Mean of the ready replicas; None: there is none."""
    ready: int
    """Replicas that take requests."""
    desired: int
    """Replicas that were asked for last."""
    starting: int
    draining: int
    room: int | None
    """Further replicas that the nodes can hold; None: unknown."""
    num_running: float
    """Requests with KV blocks, all replicas together."""
    num_waiting: float
    """Requests without, those that no replica has taken included."""
    busy: float
    """Share of the last period in which a ready replica computed: its CPU's use."""
    refused_rate: float = 0.0
    """Requests a second that were refused for want of slots."""
    replicas: Sequence[ReplicaView] = ()
    """Each ready replica, or several in the same state."""
    starts: Sequence[tuple[float, int]] = ()
    """When replicas that do not take requests yet were started, and how many."""


PredictByShapes = Callable[[Mapping[Shape, float]], Predictions | None]
"""Predicts for requests of which so many of each shape arrived."""


class SignalWindow:
    """Collects what happens, and gives the signals of the last `window_s` seconds.

    Args:
        window_s: Length of the window.
        ttft: Target of the time to the first token.
        tpot: Target of the time of a token after it.
    """

    def __init__(self, window_s: float, ttft: Target, tpot: Target) -> None:
        self._window_s = window_s
        self._ttft_target = ttft
        self._tpot_target = tpot
        # Time, value, count.
        self._ttfts: deque[tuple[float, float, float]] = deque()
        self._tpots: deque[tuple[float, float, float]] = deque()
        self._arrivals: deque[tuple[float, Shape, float]] = deque()
        self._shapes: dict[Shape, float] = {}
        self._refused: deque[tuple[float, float]] = deque()

    def note_refused(self, at_s: float, count: float) -> None:
        """Take note of requests that were refused."""
        self._refused.append((at_s, count))

    def note_arrival(self, arrival: Arrival, count: float) -> None:
        """Take note of requests."""
        self._arrivals.append((arrival.due_s, arrival.shape, count))

    def note(self, progress: Progress) -> None:
        """Take note of what a replica did."""
        for first in progress.first_tokens:
            self._ttfts.append((first.at_s, first.ttft_s, first.num_requests))
        for ended in progress.completions:
            if ended.tpot_s is not None:
                self._tpots.append((ended.at_s, ended.tpot_s, ended.num_requests))

    def ttft(self, now: float) -> LatencySignal | None:
        """Return the TTFT; None: there was no first token in the window."""
        self._forget(now)
        return _signal(self._ttfts, self._ttft_target, now)

    def tpot(self, now: float) -> LatencySignal | None:
        """Return the TPOT; None: no answer of two tokens or more ended in the window."""
        self._forget(now)
        return _signal(self._tpots, self._tpot_target, now)

    def arrival_rate(self, now: float) -> float:
        """Return the requests a second at arrival."""
        self._forget(now)
        return self._rate(now, (count for *_, count in self._arrivals))

    def refused_rate(self, now: float) -> float:
        """Return the requests a second that were refused."""
        self._forget(now)
        return self._rate(now, (count for _, count in self._refused))

    def shapes(self, now: float) -> Mapping[Shape, float]:
        """Return how many requests of each shape arrived; of the last ones where none did."""
        self._forget(now)
        if self._arrivals:
            self._shapes = {}
            for _, shape, count in self._arrivals:
                self._shapes[shape] = self._shapes.get(shape, 0.0) + count
        return self._shapes

    def _rate(self, now: float, counts: Iterable[float]) -> float:
        seconds = min(self._window_s, now)
        return sum(counts) / seconds if seconds else 0.0

    def _forget(self, now: float) -> None:
        begin = now - self._window_s
        for events in (self._ttfts, self._tpots, self._refused):
            while events and events[0][0] <= begin:
                events.popleft()
        while self._arrivals and self._arrivals[0][0] <= begin:
            self._arrivals.popleft()


class BusyMeter:
    """Share of a period in which replicas computed, from counters of seconds."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._last_s = 0.0

    def read(self, now: float, counters: Iterable[tuple[int, float, int]]) -> float:
        """Return the share since the last call.

        Args:
            now: Seconds.
            counters: Of each ready replica: an id, the seconds it computed, the replicas that it
                stands for. One that is new counts from its next period on.
        """
        seconds, last, self._last = now - self._last_s, self._last, {}
        self._last_s = now
        busy, size = 0.0, 0
        for key, counter, replicas in counters:
            self._last[key] = counter
            if key in last and seconds > 0.0:
                busy += replicas * min(1.0, max(0.0, counter - last[key]) / seconds)
                size += replicas
        return busy / size if size else 0.0


def mean_kv_usage(states: Sequence[tuple[ReplicaState, int]]) -> float | None:
    """Return the mean of replicas' states, each with the replicas that it stands for."""
    size = sum(replicas for _, replicas in states)
    return sum(state.kv_usage * replicas for state, replicas in states) / size if size else None


def mean_predictions(states: Sequence[tuple[ReplicaState, int]]) -> Predictions | None:
    """Return the mean of the replicas that predict; None: none does."""
    known = [(state.predictions, size) for state, size in states if state.predictions is not None]
    total = sum(size for _, size in known)
    if not total:
        return None
    values = zip(*([count * size for count in each] for each, size in known), strict=True)
    return Predictions(*(sum(counts) / total for counts in values))


def weighted_percentile(samples: Iterable[tuple[float, float]], percentile: float) -> float:
    """Return the least value up to which `percentile` percent of the weight lies.

    Args:
        samples: Values with their weights; not empty.
        percentile: From 0 to 100.
    """
    ordered = sorted(samples)
    limit = sum([weight for _, weight in ordered]) * percentile / _PERCENT
    below = 0.0
    for value, weight in ordered:
        below += weight
        if below >= limit * (1.0 - 1e-12):
            return value
    return ordered[-1][0]


def _signal(
    events: Sequence[tuple[float, float, float]] | deque[tuple[float, float, float]],
    target: Target,
    now: float,
) -> LatencySignal | None:
    if not events:
        return None
    samples = [event[1:] for event in events]
    return LatencySignal(
        value_s=weighted_percentile(samples, target.percentile),
        target_s=target.target_s,
        num_samples=round(sum([count for _, count in samples])),
        age_s=max(0.0, now - events[-1][0]),
    )
