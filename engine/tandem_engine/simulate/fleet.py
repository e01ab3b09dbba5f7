"""Replicas behind the router, and a controller of their number, under a virtual clock.

A replica that is added serves after a cold start. One that is removed gets no further request, and
ends with its last one. One that fails loses its requests, and is started again. While no replica is
ready, requests wait at the router. Without `slots` a queue may grow without limit.

Faults: a replica that fails or hangs, a start that never ends, requests that are refused.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from math import inf
from typing import Final, Protocol

from tandem_engine.simulate.account import Account, FleetResult
from tandem_engine.simulate.hanging_replica import HangingReplica
from tandem_engine.simulate.observation import (
    BusyMeter,
    FleetObservation,
    PredictByShapes,
    ReplicaView,
    SignalWindow,
    Target,
    mean_kv_usage,
    mean_predictions,
)
from tandem_engine.simulate.replica import Replica
from tandem_engine.simulate.router import LeastConnections
from tandem_engine.simulate.workload import Arrival

_SECOND: Final = 1.0
_NONE: Final = 1e-6
"""Requests of a flow that are none."""

MakeReplicas = Callable[[int, float], Sequence[Replica]]
"""Makes so many replicas at a time, in seconds: one object each, or one for all of them."""


class Controller(Protocol):
    """Decides how many replicas there are; called once a period."""

    def desired(self, observation: FleetObservation, now: float) -> int:
        """Return the number of replicas at `now`, in seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """A fleet."""

    ttft: Target
    tpot: Target
    min_replicas: int = 1
    max_replicas: int
    initial_replicas: int = 1
    """Ready when the load begins."""
    room: int | None = None
    """Replicas that the nodes can hold; more are not started. None: any number."""
    period_s: float = 15.0
    """Time between two calls of the controller."""
    window_s: float = 60.0
    """Length of the window of its signals."""
    warm_up_s: float = 0.0
    """Time at the begin that counts for nothing."""
    failures_s: Sequence[float] = ()
    """When a ready replica fails: the one that is ready for the longest time."""
    hangs_s: Sequence[float] = ()
    """When such a replica begins to hang: it takes requests and computes none."""
    lost_starts: int = 0
    """Of the replicas that are started, the first so many never become ready."""
    slots: int | None = None
    """Requests that a replica takes at once; more are refused. None: any number."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.initial_replicas <= self.max_replicas:
            raise ValueError(
                f"initial_replicas is {self.initial_replicas}; it must be from min_replicas "
                f"({self.min_replicas}) to max_replicas ({self.max_replicas})"
            )


class _Kind(Enum):
    READY = 0
    FAILURE = 1
    PERIOD = 2
    HANG = 3


@dataclass(slots=True, eq=False)
class _Member:
    """Replicas that were started together."""

    replica: Replica
    number: int


class Fleet:
    """Runs a load.

    Args:
        settings: The fleet.
        make_replicas: Makes replicas.
        controller: Decides their number.
        cold_start_s: Returns the time that a start takes, in seconds; called once a start.
        predict: Predicts where replicas do not; None: nothing does.
    """

    def __init__(
        self,
        settings: FleetSettings,
        make_replicas: MakeReplicas,
        controller: Controller,
        *,
        cold_start_s: Callable[[], float],
        predict: PredictByShapes | None = None,
    ) -> None:
        self._settings = settings
        self._make_replicas = make_replicas
        self._controller = controller
        self._cold_start_s = cold_start_s
        self._predict = predict
        self._router = LeastConnections()
        self._ready: list[_Member] = []
        self._draining: list[_Member] = []
        # Numbers of starts that are under way, with their replicas.
        self._starting: dict[int, int] = {}
        self._began_s: dict[int, float] = {}
        self._lost_starts = settings.lost_starts
        self._desired = settings.initial_replicas
        self._held: list[tuple[Arrival, float]] = []
        self._events: list[tuple[float, int, _Kind, int]] = []
        self._number = 0
        self._now = 0.0
        self._window = SignalWindow(settings.window_s, settings.ttft, settings.tpot)
        self._busy = BusyMeter()
        self._account = Account(
            settings.ttft, settings.tpot, settings.period_s, since_s=settings.warm_up_s
        )
        self._is_over = False

    def run(self, load: Iterable[tuple[Arrival, float]], duration_s: float) -> FleetResult:
        """Serve a load to the end of its last answer.

        Args:
            load: Requests in the order of time, each with a count.
            duration_s: When the load is over: no decision is made and no replica counted later.
        """
        self._add_ready(self._settings.initial_replicas)
        for failure_s in self._settings.failures_s:
            self._plan(failure_s, _Kind.FAILURE)
        for hang_s in self._settings.hangs_s:
            self._plan(hang_s, _Kind.HANG)
        self._plan(self._settings.period_s, _Kind.PERIOD)
        for arrival, count in load:
            self._run_until(arrival.due_s)
            self._account.note_arrival(arrival.due_s, count)
            self._window.note_arrival(arrival, count)
            self._route(arrival, count)
        self._run_until(duration_s)
        self._is_over = True
        self._drop_hanging(self._ready)
        self._finish()
        return self._account.result()

    @property
    def num_ongoing(self) -> float:
        """Requests that arrived and neither completed nor failed."""
        members = [*self._ready, *self._draining]
        running = sum(each.replica.num_ongoing * each.replica.size for each in members)
        return running + sum(count for _, count in self._held)

    def _finish(self) -> None:
        while self.num_ongoing > _NONE:
            if not self._ready and not self._draining and not self._starting:
                raise RuntimeError("requests wait, and no replica is there or starts")
            self._run_until(self._now + _SECOND)

    def _run_until(self, time_s: float) -> None:
        while self._events and self._events[0][0] <= time_s:
            at_s, _, kind, number = heappop(self._events)
            self._advance(at_s)
            match kind:
                case _Kind.READY:
                    self._become_ready(number)
                case _Kind.FAILURE:
                    self._fail()
                case _Kind.HANG:
                    self._hang()
                case _Kind.PERIOD if not self._is_over:
                    self._decide(at_s)
                    self._plan(at_s + self._settings.period_s, _Kind.PERIOD)
                case _:
                    pass
        self._advance(time_s)

    def _advance(self, now: float) -> None:
        if not self._is_over:
            self._account.note_replicas(self._now, now, self._num_provisioned)
        self._now = now
        for member in (*self._ready, *self._draining):
            progress = member.replica.advance(now)
            self._window.note(progress)
            for completion in progress.completions:
                self._account.note(completion)
        if self._draining:
            self._drop_hanging(self._draining)
            self._draining = [each for each in self._draining if each.replica.num_ongoing > _NONE]

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def _route(self, arrival: Arrival, count: float) -> None:
        replicas = [member.replica for member in self._ready]
        if not replicas:
            self._held.append((arrival, count))
            return
        slots = self._settings.slots
        if slots is not None:
            replicas = [each for each in replicas if each.num_ongoing < slots]
        if not replicas:
            self._account.num_failed += count
            self._window.note_refused(self._now, count)
        elif count == 1.0 and all(each.size == 1 for each in replicas):
            self._router.pick(replicas).submit(arrival)
        else:
            for replica, part in self._router.share(replicas, count):
                replica.submit(arrival, part)

    def _release(self) -> None:
        held, self._held = self._held, []
        for arrival, count in held:
            self._route(arrival, count)

    # ── replicas ─────────────────────────────────────────────────────────────────────────────

    @property
    def _num_ready(self) -> int:
        return sum(member.replica.size for member in self._ready)

    @property
    def _num_starting(self) -> int:
        return sum(self._starting.values())

    @property
    def _num_draining(self) -> int:
        return sum(member.replica.size for member in self._draining)

    @property
    def _num_provisioned(self) -> int:
        return self._num_ready + self._num_starting + self._num_draining

    def _plan(self, at_s: float, kind: _Kind) -> int:
        self._number += 1
        heappush(self._events, (at_s, self._number, kind, self._number))
        return self._number

    def _add_ready(self, count: int) -> None:
        for replica in self._make_replicas(count, self._now) if count else ():
            self._number += 1
            self._ready.append(_Member(replica, self._number))
        self._release()

    def _start(self, count: int) -> None:
        if self._settings.room is not None:
            count = min(count, self._settings.room - self._num_provisioned)
        if count <= 0:
            return
        lost = min(count, self._lost_starts)
        self._lost_starts -= lost
        for size, ready_s in ((lost, inf), (count - lost, self._now + self._cold_start_s())):
            if size > 0:
                number = self._plan(ready_s, _Kind.READY)
                self._starting[number], self._began_s[number] = size, self._now

    def _become_ready(self, number: int) -> None:
        self._add_ready(self._starting.pop(number, 0))

    def _remove(self, count: int) -> None:
        """End starts, the newest first, then drain the replicas with the fewest requests."""
        for number in sorted(self._starting, reverse=True):
            ended = min(count, self._starting[number])
            self._starting[number] -= ended
            count -= ended
        self._starting = {number: left for number, left in self._starting.items() if left}
        while count > 0:
            least = min(self._ready, key=lambda each: each.replica.num_ongoing)
            part = self._take(least, min(count, least.replica.size))
            self._draining.append(part)
            count -= part.replica.size

    def _take(self, member: _Member, size: int) -> _Member:
        """Take so many replicas from those that are ready."""
        if size < member.replica.size:
            self._number += 1
            return _Member(member.replica.split(size), self._number)
        self._ready.remove(member)
        return member

    def _fail(self) -> None:
        if not self._ready:
            return
        failed = self._take(self._ready[0], 1)
        self._account.num_failed += failed.replica.num_ongoing
        self._start(1)

    def _hang(self) -> None:
        if not self._ready:
            return
        member = self._take(self._ready[0], 1)
        self._ready.append(_Member(HangingReplica(member.replica, self._now), member.number))

    def _drop_hanging(self, members: list[_Member]) -> None:
        """Let the requests of replicas that hang fail, since they never end."""
        hanging = [each for each in members if isinstance(each.replica, HangingReplica)]
        for member in hanging:
            self._account.num_failed += member.replica.num_ongoing
            members.remove(member)

    def _absorb(self) -> None:
        """Put replicas together that have come to the same state."""
        kept: list[_Member] = []
        for member in self._ready:
            hangs = isinstance(member.replica, HangingReplica)
            if hangs or not any(other.replica.absorb(member.replica) for other in kept):
                kept.append(member)
        self._ready = kept

    # ── the controller ───────────────────────────────────────────────────────────────────────

    def _decide(self, now: float) -> None:
        settings = self._settings
        observation = self._observe(now)
        desired = self._controller.desired(observation, now)
        desired = min(max(desired, settings.min_replicas), settings.max_replicas)
        self._account.note_decision(now, desired, observation)
        self._desired = desired
        there = self._num_ready + self._num_starting
        if desired > there:
            self._start(desired - there)
        elif desired < there:
            self._remove(there - desired)
        self._absorb()

    def _observe(self, now: float) -> FleetObservation:
        window, settings = self._window, self._settings
        states = [(each.replica.state(), each.replica.size) for each in self._ready]
        draining = [(each.replica.state(), each.replica.size) for each in self._draining]
        counters = [
            (member.number, state.busy_s, size)
            for member, (state, size) in zip(self._ready, states, strict=True)
        ]
        held_s = now - self._held[0][0].due_s if self._held else 0.0
        arrival_rate = window.arrival_rate(now)
        predictions = mean_predictions(states)
        if predictions is None and self._predict is not None:
            predictions = self._predict(window.shapes(now))
        return FleetObservation(
            ttft=window.ttft(now),
            tpot=window.tpot(now),
            queue_age_s=max([held_s, *(state.queue_age_s for state, _ in states)]),
            arrival_rate=arrival_rate,
            capacity_per_replica=predictions.requests_per_s if predictions else None,
            concurrency_per_replica=predictions.concurrency if predictions else None,
            zero_load_ttft_s=predictions.zero_load_ttft_s if predictions else None,
            zero_load_tpot_s=predictions.zero_load_tpot_s if predictions else None,
            kv_usage=mean_kv_usage(states),
            ready=self._num_ready,
            desired=self._desired,
            starting=self._num_starting,
            draining=self._num_draining,
            room=None if settings.room is None else settings.room - self._num_provisioned,
            num_running=sum(state.num_running * size for state, size in states + draining),
            num_waiting=sum(state.num_waiting * size for state, size in states + draining)
            + sum(count for _, count in self._held),
            busy=self._busy.read(now, counters),
            refused_rate=window.refused_rate(now),
            replicas=tuple(
                ReplicaView(member.number, size, state)
                for member, (state, size) in zip(self._ready, states, strict=True)
            ),
            starts=tuple((self._began_s[each], size) for each, size in self._starting.items()),
        )
