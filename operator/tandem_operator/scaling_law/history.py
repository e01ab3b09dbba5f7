"""The past of one service, as far as decisions need it; pure, immutable, bounded."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandem_operator.scaling_law.decision import Decision
from tandem_operator.scaling_law.hindsight import FIRST, MEMORY_S, PastLoad, Rule
from tandem_operator.scaling_law.observation import Observation, finite

MAX_DECISIONS: Final = 20
"""Runs of equal decisions that are kept, and shown in the status."""

_MAX_RECOMMENDATIONS: Final = 512
_MAX_SAMPLES: Final = 64
_MAX_LOADS: Final = 3600
"""An hour's, at the shortest period of decisions, a second."""
_MAX_CHANGES: Final = 64
_MAX_COLD_STARTS: Final = 20
_PERCENTILE: Final = 0.9


@dataclass(frozen=True, slots=True)
class PastDecision:
    """Decisions in a row with the same number and reason; the newest of them."""

    first_s: float
    last_s: float
    decision: Decision


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A number that was recommended from one moment to another."""

    first_s: float
    last_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Signals of one moment."""

    at_s: float
    queue_age_s: float
    latency_ratio: float
    """The largest of the measured latencies as multiples of their targets; 0: none."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the number of replicas."""

    at_s: float
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Decisions, recommendations, changes and cold starts of one service. Moments are seconds."""

    decisions: tuple[PastDecision, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    samples: tuple[Sample, ...] = ()
    loads: tuple[PastLoad, ...] = ()
    """Those of the time that rules are compared on."""

    rule: Rule = FIRST
    chosen_s: float | None = None
    """When rules were last compared; None: never."""

    changes: tuple[Change, ...] = ()
    cold_starts_s: tuple[float, ...] = ()
    unsettled_s: float | None = None
    """The last moment at which a replica was starting, or the number changed; None: never."""

    max_gap_s: float = 90.0
    """Seconds between two decisions from which on the time between them counts as unknown."""

    def append(self, now: float, observation: Observation, decision: Decision) -> "History":
        """Return the history with one more decision."""
        if self.recommendations and now < self.recommendations[-1].last_s:
            # The clock was set back; all windows start again.
            begun = replace(
                self, recommendations=(), samples=(), loads=(), changes=(), unsettled_s=now
            )
            return begun.append(now, observation, decision)
        is_change = decision.desired != observation.desired
        change = Change(now, observation.desired, decision.desired)
        changes = (*self.changes, change)[-_MAX_CHANGES:] if is_change else self.changes
        return replace(
            self,
            decisions=self._decisions(now, decision),
            recommendations=self._recommendations(now, decision.recommended),
            samples=(*self.samples, _sample(now, observation))[-_MAX_SAMPLES:],
            changes=changes,
            loads=self.loads_at(now, decision.load),
            rule=decision.rule or self.rule,
            chosen_s=now if decision.rule else self.chosen_s,
            unsettled_s=now if is_change or observation.pending else self.unsettled_s,
        )

    def with_cold_start(self, seconds: float) -> "History":
        """Return the history with one more measured time from a replica's start to its answers."""
        starts = (*self.cold_starts_s, seconds)[-_MAX_COLD_STARTS:]
        return replace(self, cold_starts_s=starts)

    @property
    def cold_start_s(self) -> float:
        """The 90th percentile of the measured cold starts; 0: none was measured."""
        if not self.cold_starts_s:
            return 0.0
        rank = math.ceil(_PERCENTILE * len(self.cold_starts_s))
        return sorted(self.cold_starts_s)[rank - 1]

    def settled_for_s(self, now: float) -> float:
        """Seconds for which no replica has been starting and the number has not changed."""
        return math.inf if self.unsettled_s is None else now - self.unsettled_s

    def since_change_s(self, now: float) -> float:
        """Seconds since the number last changed."""
        return now - self.changes[-1].at_s if self.changes else math.inf

    def since_growth_s(self, now: float) -> float:
        """Seconds since the number last grew."""
        grown = [change.at_s for change in self.changes if change.after > change.before]
        return now - grown[-1] if grown else math.inf

    def since_fall_s(self, now: float) -> float:
        """Seconds since the number last fell."""
        fallen = [change.at_s for change in self.changes if change.after < change.before]
        return now - fallen[-1] if fallen else math.inf

    def grown_by(self, now: float, window_s: float) -> int:
        """Return the replicas that were added in the last `window_s` seconds."""
        steps = (
            change.after - change.before for change in self.changes if now - change.at_s <= window_s
        )
        return sum(step for step in steps if step > 0)

    def within(self, now: float, window_s: float) -> Iterable[int]:
        """Return the numbers recommended in the last `window_s` seconds."""
        return [span.replicas for span in self.recommendations if now - span.last_s <= window_s]

    def covers(self, now: float, window_s: float) -> bool:
        """Return True when decisions were made for all of the last `window_s` seconds."""
        until = now
        for span in reversed(self.recommendations):
            if not 0 <= until - span.last_s <= self.max_gap_s:
                return False
            until = span.first_s
            if now - until >= window_s:
                return True
        return window_s <= 0

    def loads_at(self, now: float, load: PastLoad | None) -> tuple[PastLoad, ...]:
        """Return the loads of the time that rules are compared on, that of now included."""
        loads = self.loads if load is None else (*self.loads, load)[-_MAX_LOADS:]
        return tuple(past for past in loads if now - past.at_s <= MEMORY_S)

    def with_loads(self, past: Sequence[PastLoad]) -> "History":
        """Return the history with loads of the time before its own, the oldest first."""
        begin_s = self.loads[0].at_s if self.loads else math.inf
        earlier = tuple(load for load in past if load.at_s < begin_s)
        return replace(self, loads=(*earlier, *self.loads)[-_MAX_LOADS:])

    def is_draining(self, now: float, queue_age_s: float, window_s: float) -> bool:
        """Return True when the queue is clearly younger than at the window's begin."""
        ages = [sample.queue_age_s for sample in self.samples if now - sample.at_s <= window_s]
        return bool(ages) and queue_age_s < 0.9 * ages[0]

    def _decisions(self, now: float, decision: Decision) -> tuple[PastDecision, ...]:
        if self.decisions and _is_same(self.decisions[-1].decision, decision):
            first_s = self.decisions[-1].first_s
            return (*self.decisions[:-1], PastDecision(first_s, now, decision))
        return (*self.decisions, PastDecision(now, now, decision))[-MAX_DECISIONS:]

    def _recommendations(self, now: float, replicas: int) -> tuple[Recommendation, ...]:
        new = Recommendation(now, now, replicas)
        if not self.recommendations:
            return (new,)
        *before, last = self.recommendations
        if last.replicas == replicas and now - last.last_s <= self.max_gap_s:
            return (*before, replace(last, last_s=now))
        return (*self.recommendations, new)[-_MAX_RECOMMENDATIONS:]


def _is_same(decision: Decision, other: Decision) -> bool:
    return (decision.desired, decision.reason) == (other.desired, other.reason)


def _sample(now: float, observation: Observation) -> Sample:
    ratios = [signal.ratio for signal in observation.signals() if signal.num_samples]
    return Sample(
        now,
        finite(observation.queue_age_s) or 0.0,
        max(filter(math.isfinite, ratios), default=0.0),
    )
