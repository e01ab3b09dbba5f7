"""What a run of a fleet came to: attainment, replica-hours, requests, decisions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log
from typing import Final

from tandem_engine.simulate.observation import FleetObservation, Target, weighted_percentile
from tandem_engine.simulate.replica import Completion

_LEAST_S: Final = 1e-9
_HOUR_S: Final = 3600.0
_GRAIN: Final = 1.01
"""Latencies within 1 % of each other are counted together, so that a day takes little memory."""
_PER_GRAIN: Final = 1.0 / log(_GRAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A fleet at the end of a period, and what the controller said."""

    now_s: float
    desired: int
    """The controller's, clamped to what the fleet may have."""
    observation: FleetObservation
    attainment: float | None
    """Share of the requests that ended in the period that met both targets; None: none ended."""


@dataclass(slots=True)
class PeriodArrivals:
    """The requests that arrived in one period."""

    num_arrived: float = 0.0
    num_met: float = 0.0
    """Met both targets, whenever they ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """One load on a fleet with one controller."""

    num_arrived: float
    num_completed: float
    num_failed: float
    """Lost with a replica that failed or hung, or refused."""
    num_met: float
    """Met both targets."""
    replica_hours: float
    """Starting, ready and draining replicas over the time of the load."""
    ttft_s: float | None
    """At the target's percentile, over all requests; None: no request ended."""
    tpot_s: float | None
    moments: Sequence[Moment]
    num_ups: int
    """Periods in which the controller asked for more replicas than before."""
    num_downs: int
    periods: Sequence["PeriodArrivals"]
    """Requests by the period that they arrived in, from the first on."""

    @property
    def attainment(self) -> float:
        """Share of all requests that met both targets; 1 without any."""
        return self.num_met / self.num_arrived if self.num_arrived else 1.0

    def num_flaps(self, window_s: float) -> int:
        """Return how often the count was lowered and raised again within a time."""
        flaps, lowered_s, last = 0, -window_s, None
        for moment in self.moments:
            if last is not None and moment.desired < last:
                lowered_s = moment.now_s
            if last is not None and moment.desired > last and moment.now_s - lowered_s < window_s:
                flaps += 1
                lowered_s = -window_s
            last = moment.desired
        return flaps


@dataclass(slots=True)
class Account:
    """Adds up a run.

    Args:
        ttft: Target of the time to the first token.
        tpot: Target of the time of a token after it.
        period_s: Time between two calls of the controller.
        since_s: Begin of moments and periods; what came before counts for nothing.
    """

    ttft: Target
    tpot: Target
    period_s: float
    since_s: float = 0.0
    num_arrived: float = 0.0
    num_completed: float = 0.0
    num_failed: float = 0.0
    num_met: float = 0.0
    replica_s: float = 0.0
    moments: list[Moment] = field(default_factory=list)
    _ttfts: dict[int, float] = field(default_factory=dict)
    _tpots: dict[int, float] = field(default_factory=dict)
    _last: tuple[float, float] = (0.0, 0.0)
    _periods: list[PeriodArrivals] = field(default_factory=list)

    def note_arrival(self, at_s: float, count: float) -> None:
        """Count requests that came."""
        if at_s < self.since_s:
            return
        self.num_arrived += count
        number = self._period(at_s)
        while len(self._periods) <= number:
            self._periods.append(PeriodArrivals())
        self._periods[number].num_arrived += count

    def note_replicas(self, begin_s: float, end_s: float, count: int) -> None:
        """Count replicas that were there from one moment to another."""
        self.replica_s += max(0.0, end_s - max(begin_s, self.since_s)) * count

    def note_decision(self, now: float, desired: int, observation: FleetObservation) -> None:
        """Keep what the controller said."""
        attainment = self._attainment_since_last()
        if now > self.since_s:
            self.moments.append(
                Moment(
                    now_s=now - self.since_s,
                    desired=desired,
                    observation=observation,
                    attainment=attainment,
                )
            )

    def note(self, completion: Completion) -> None:
        """Count requests that ended."""
        if completion.arrived_s < self.since_s:
            return
        count, tpot_s = completion.num_requests, completion.tpot_s
        self.num_completed += count
        in_time = completion.ttft_s <= self.ttft.target_s
        at_pace = tpot_s is None or tpot_s <= self.tpot.target_s
        if in_time and at_pace:
            self.num_met += count
            self._periods[self._period(completion.arrived_s)].num_met += count
        _count(self._ttfts, completion.ttft_s, count)
        if tpot_s is not None:
            _count(self._tpots, tpot_s, count)

    def _period(self, at_s: float) -> int:
        return int((at_s - self.since_s) / self.period_s)

    def _attainment_since_last(self) -> float | None:
        """Return the share that met both targets of the requests that ended since the last call."""
        completed, met = self._last
        self._last = (self.num_completed, self.num_met)
        ended = self.num_completed - completed
        return (self.num_met - met) / ended if ended > 0.0 else None

    def result(self) -> FleetResult:
        """Return the sums."""
        counts = [moment.desired for moment in self.moments]
        changes = [later - earlier for earlier, later in pairwise(counts)]
        return FleetResult(
            num_arrived=self.num_arrived,
            num_completed=self.num_completed,
            num_failed=self.num_failed,
            num_met=self.num_met,
            replica_hours=self.replica_s / _HOUR_S,
            ttft_s=_percentile(self._ttfts, self.ttft.percentile),
            tpot_s=_percentile(self._tpots, self.tpot.percentile),
            moments=self.moments,
            num_ups=sum(change > 0 for change in changes),
            num_downs=sum(change < 0 for change in changes),
            periods=self._periods,
        )


def _count(counts: dict[int, float], value: float, count: float) -> None:
    key = ceil(log(max(value, _LEAST_S)) * _PER_GRAIN)
    counts[key] = counts.get(key, 0.0) + count


def _percentile(counts: dict[int, float], percentile: float) -> float | None:
    if not counts:
        return None
    return weighted_percentile(((_GRAIN**key, count) for key, count in counts.items()), percentile)
