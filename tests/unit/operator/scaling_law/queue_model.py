"""A service as one queue before N equal replicas, in virtual time: enough to close the loop.

Requests arrive at random; a replica computes one prompt at a time. The seed makes a run repeatable.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import LatencySignal, Observation
from tandem_operator.scaling_law.policy import ScalingPolicy
from tests.unit.operator.scaling_law.measurements import PERIOD_S, TPOT_S, TTFT_S

REPLICA_RATE: Final = 10.0
"""Requests a second that one replica computes at most."""

CAPACITY: Final = 9.0
"""Requests a second at which its model says that it keeps its targets."""

ZERO_LOAD_TTFT_S: Final = 0.3
WINDOW_S: Final = 60.0

Law = Callable[[Observation, ScalingPolicy, History, float], Decision]
Disturbance = Callable[[float, Observation], Observation]


@dataclass(frozen=True)
class Moment:
    """One decision, with the service as it was then."""

    at_s: float
    observation: Observation
    decision: Decision


@dataclass
class Run:
    """One service, its queue, its replicas and its autoscaler."""

    load: Callable[[float], float]
    policy: ScalingPolicy
    replicas: int
    cold_start_s: float = 90.0
    law: Law = decide
    disturb: Disturbance = lambda _, observation: observation
    seed: int = 1
    num_never: int = 0
    """Of the replicas that are started, the first so many never answer."""

    now: float = 0.0
    moments: list[Moment] = field(default_factory=list)
    ttfts: deque[tuple[float, float]] = field(default_factory=deque)
    history: History = field(default_factory=History)
    num_met: int = 0
    num_requests: int = 0
    replica_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._free_at = [0.0] * self.replicas
        self._starting: list[float] = []
        self._never: list[float] = []
        self._queue: deque[float] = deque()
        self._arrivals: deque[float] = deque()

    @property
    def desired(self) -> int:
        return len(self._free_at) + len(self._starting)

    def until(self, seconds: float) -> "Run":
        """Run up to this moment."""
        while self.now < seconds:
            self._serve(self.now + PERIOD_S)
            self._decide()
        return self

    def numbers(self, since_s: float = 0.0) -> list[int]:
        """Return the numbers decided from this moment on."""
        return [one.decision.desired for one in self.moments if one.at_s >= since_s]

    def changes(self, since_s: float = 0.0) -> list[tuple[float, int]]:
        """Return moment and size of each change of the number."""
        return [
            (one.at_s, one.decision.desired - one.observation.desired)
            for one in self.moments
            if one.at_s >= since_s and one.decision.desired != one.observation.desired
        ]

    @property
    def attainment(self) -> float:
        """The share of requests that met their target."""
        return self.num_met / max(1, self.num_requests)

    def _serve(self, end_s: float) -> None:
        while self._starting and self._starting[0] <= end_s:
            heapq.heappush(self._free_at, heapq.heappop(self._starting))
        for arrival_s in self._arrivals_until(end_s):
            self._queue.append(arrival_s)
            self._arrivals.append(arrival_s)
        while self._queue and self._free_at and self._free_at[0] < end_s:
            self._start_one()
        self.replica_seconds += self.desired * (end_s - self.now)
        self.now = end_s

    def _arrivals_until(self, end_s: float) -> list[float]:
        found, moment = [], self.now
        while (rate := self.load(moment)) > 0:
            moment += self._random.expovariate(rate)
            if moment >= end_s:
                break
            found.append(moment)
        return found

    def _start_one(self) -> None:
        arrival_s = self._queue.popleft()
        start_s = max(heapq.heappop(self._free_at), arrival_s)
        heapq.heappush(self._free_at, start_s + 1 / REPLICA_RATE)
        ttft_s = start_s - arrival_s + ZERO_LOAD_TTFT_S
        self.ttfts.append((start_s, ttft_s))
        self.num_requests += 1
        self.num_met += ttft_s <= TTFT_S

    def _decide(self) -> None:
        observation = self.disturb(self.now, self._observe())
        decision = self.law(observation, self.policy, self.history, self.now)
        self.history = self.history.append(self.now, observation, decision)
        self.moments.append(Moment(self.now, observation, decision))
        for _ in range(decision.desired - self.desired):
            is_lost = len(self._never) < self.num_never
            if is_lost:
                self._never.append(self.now)
            heapq.heappush(self._starting, math.inf if is_lost else self.now + self.cold_start_s)
            self.history = self.history.with_cold_start(self.cold_start_s)
        for _ in range(self.desired - decision.desired):
            # The least busy one ends, after what it is computing; those that start go first.
            heapq.heappop(self._starting or self._free_at)

    def _observe(self) -> Observation:
        while self._arrivals and self._arrivals[0] < self.now - WINDOW_S:
            self._arrivals.popleft()
        while self.ttfts and self.ttfts[0][0] < self.now - WINDOW_S:
            self.ttfts.popleft()
        values = sorted(ttft_s for _, ttft_s in self.ttfts)
        rate = len(self._arrivals) / WINDOW_S
        used = min(1.0, rate / (REPLICA_RATE * max(1, len(self._free_at))))
        p90 = values[int(0.9 * (len(values) - 1))] if values else float("nan")
        return Observation(
            ready=len(self._free_at),
            starting=len(self._starting),
            overdue=sum(self.now - at_s > 2 * self.cold_start_s for at_s in self._never),
            desired=self.desired,
            ttft=LatencySignal(p90, TTFT_S, len(values), 5.0),
            tpot=LatencySignal(0.04 + 0.02 * used, TPOT_S, len(values), 5.0),
            queue_age_s=self.now - self._queue[0] if self._queue else 0.0,
            arrival_rate=rate,
            capacity_per_replica=CAPACITY,
            zero_load_ttft_s=ZERO_LOAD_TTFT_S,
            zero_load_tpot_s=0.04,
            kv_usage=0.6 * used,
        )
