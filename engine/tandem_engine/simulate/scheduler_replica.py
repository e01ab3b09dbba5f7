"""A replica with the production scheduler and block pool; only the time of a step is made up."""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final, TypeVar

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import Slo
from tandem_engine.api.step import Advance, Step
from tandem_engine.async_engine.capacity_question import Measure
from tandem_engine.async_engine.recent_requests import RecentRequests
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.latency.capacity import ReplicaLimits
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.simulate.capacity_meter import CapacityMeter
from tandem_engine.simulate.drafts import SimulatedDrafts
from tandem_engine.simulate.machines import StepTimer
from tandem_engine.simulate.predictions import predict
from tandem_engine.simulate.replica import (
    Completion,
    FirstToken,
    Predictions,
    Progress,
    Replica,
    ReplicaState,
)
from tandem_engine.simulate.token_counter import TokenCounter
from tandem_engine.simulate.workload import Arrival, Shape

_LONGEST_OUTPUT: Final = 1024
_SAMPLING: Final = SamplingParams(max_tokens=_LONGEST_OUTPUT)


_Event = TypeVar("_Event", FirstToken, Completion)


class SchedulerReplica:
    """One replica, step by step.

    Args:
        schedule: MindIE's parameters.
        slo: The latency targets.
        machine: Gives the time of each step.
        num_blocks: KV blocks of the pool.
        drafts: Draft tokens; None: there are none.
        measure: Measures its capacity, now and then; None: it is computed.
    """

    size: Final = 1

    def __init__(
        self,
        schedule: ScheduleConfig,
        slo: Slo,
        machine: StepTimer,
        *,
        num_blocks: int,
        drafts: SimulatedDrafts | None = None,
        measure: Measure | None = None,
    ) -> None:
        self.scheduler = Scheduler(
            schedule,
            BlockPool(num_blocks, schedule.cache_block_size),
            slo=slo,
            speculation=None if drafts is None else drafts.speculation,
        )
        """The scheduler that is measured."""
        self.next_step_s = inf
        """When the next step begins; inf: with the next request."""
        self.now = 0.0
        """End of the last step."""
        self.num_steps = 0
        self._machine, self._drafts = machine, drafts
        self._runner = TokenCounter()
        self._num_submitted = 0
        self._num_completed = 0
        self._shapes: dict[str, tuple[Shape, float]] = {}
        self._first_tokens_s: dict[str, float] = {}
        self._unstarted: dict[str, float] = {}
        self._is_idle = True
        self._empty_at = -inf
        self._busy_s = 0.0
        self._slo = slo
        self._limits = ReplicaLimits.of(schedule, num_blocks)
        self._recent = RecentRequests()
        self._meter = None if measure is None else CapacityMeter(measure, schedule, slo, num_blocks)
        # Ends of a step that is computed up to a time later than `advance` was told.
        self._new_first_tokens: deque[FirstToken] = deque()
        self._new_completions: deque[Completion] = deque()
        self._advanced_s = 0.0

    @property
    def num_ongoing(self) -> int:
        """Requests submitted and not completed."""
        return self._num_submitted - self._num_completed

    @property
    def waiting_since(self) -> list[float]:
        """Arrivals of the requests that have no first token."""
        firsts = self._first_tokens_s
        return [since for name, (_, since) in self._shapes.items() if name not in firsts]

    def submit(self, arrival: Arrival, count: float = 1.0) -> None:
        """Take a request.

        Raises:
            ValueError: `count` is not 1: the scheduler knows single requests.
        """
        if count != 1.0:
            raise ValueError(f"count is {count:g}; a SchedulerReplica takes one request at a time")
        request = _request(self._num_submitted, arrival)
        self._num_submitted += 1
        self._shapes[request.request_id] = (arrival.shape, arrival.due_s)
        self._unstarted[request.request_id] = arrival.due_s
        self._recent.arrived(arrival.shape.num_input, 1)
        if self._meter is not None:
            self._meter.arrived(request.request_id, arrival)
        self._runner.add(request)
        self.scheduler.add(request)
        if self._is_idle:
            # The last step may end later than the request comes.
            self.next_step_s = max(arrival.due_s, self.now)
            self._is_idle = False

    def step(self) -> Progress:
        """Compute the next step; return what it brings, at its end."""
        now, step = self._schedule(self.next_step_s)
        self.now = ended = now + self._machine.seconds(step) if step.sequence_ids else now
        self._busy_s += ended - now
        for sequence_id in step.sequence_ids[step.num_decodes :]:
            if self._unstarted.pop(sequence_id, None) is not None:
                self._recent.admitted(self._shapes[sequence_id][0].num_input, 0, 1)
        advances = self.scheduler.complete(step, self._runner.run(step), ended)
        progress = self._progress(advances, ended)
        for sequence_id in self.scheduler.take_ended():
            self._runner.remove(sequence_id)
        self.num_steps += 1
        self._plan_next(step, ended)
        return progress

    def _schedule(self, now: float) -> tuple[float, Step]:
        """Have drafts proposed; return the time at which the step begins, and the step."""
        if self._drafts is None:
            return now, self.scheduler.schedule(now)
        proposals = self._drafts.propose(self.scheduler.drafting(), self._runner)
        drafting_s = self._drafts.seconds(proposals)
        self._busy_s += drafting_s
        begins = now + drafting_s
        return begins, self.scheduler.schedule(begins, proposals, drafting_s=drafting_s)

    def advance(self, now: float) -> Progress:
        """Compute the steps that begin before `now`; return what was seen by then."""
        while self.next_step_s < now:
            progress = self.step()
            self._new_first_tokens.extend(progress.first_tokens)
            self._new_completions.extend(progress.completions)
        self._advanced_s = now
        completions = _until(self._new_completions, now)
        self._num_completed += len(completions)
        return Progress(_until(self._new_first_tokens, now), completions)

    def state(self) -> ReplicaState:
        """Return queues and blocks after the last step."""
        stats = self.scheduler.stats()
        oldest = next(iter(self._unstarted.values()), self._advanced_s)
        return ReplicaState(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            queue_age_s=max(0.0, self._advanced_s - oldest),
            kv_usage=1.0 - stats.num_free_kv_blocks / stats.num_kv_blocks,
            busy_s=self._busy_s - max(0.0, self.now - self._advanced_s),
            predictions=self._predictions(stats.tpot_pace or 1.0),
        )

    def _predictions(self, pace: float) -> Predictions | None:
        shape = self._recent.shape()
        if shape is None:
            return None
        prices = self.scheduler.step_prices
        meter = self._meter
        measured = None if meter is None else meter.capacity(prices, self._advanced_s)
        return predict(prices, shape, self._limits, self._slo, pace=pace, measured=measured)

    def split(self, size: int) -> Replica:
        """Raise: it is one replica.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"size is {size}; a SchedulerReplica is one replica, which has no parts")

    def absorb(self, other: Replica) -> bool:  # noqa: ARG002  # an interface's parameter
        """Return False: each replica has a scheduler of its own."""
        return False

    def _plan_next(self, step: Step, ended: float) -> None:
        self._is_idle = not self.scheduler.has_work
        if self._is_idle:
            self.next_step_s = inf
            return
        if step.sequence_ids:
            self.next_step_s = ended
            return
        # An empty step: the scheduler waits for a time of its own, or for another request.
        self._is_idle = True
        self.next_step_s = self.scheduler.wake_at
        # One that has preempted is followed by another at once.
        was_empty, self._empty_at = self._empty_at == ended, ended
        if self.next_step_s <= ended and was_empty:
            raise RuntimeError(f"an empty step at {ended} s, and nothing to wait for")

    def _progress(self, advances: Sequence[Advance], now: float) -> Progress:
        first_tokens, completions = [], []
        for advance in advances:
            name = advance.sequence_id
            shape, arrived = self._shapes[name]
            if name not in self._first_tokens_s:
                self._first_tokens_s[name] = now
                first_tokens.append(FirstToken(now, now - arrived))
            if advance.finish_reason is not None:
                del self._shapes[name]
                first = self._first_tokens_s.pop(name)
                others = shape.num_output - 1
                tpot_s = (now - first) / others if others else None
                self._recent.ended(shape.num_input, shape.num_output)
                if self._meter is not None:
                    self._meter.ended(name, shape)
                completions.append(Completion(now, arrived, first, tpot_s, shape))
        return Progress(first_tokens, completions)


def _request(number: int, arrival: Arrival) -> Request:
    """Make the request of an arrival.

    The scheduler must not know how long an answer gets: the k-th token is k, so the last one is an
    end token, long before the longest answer that is allowed.
    """
    shape = arrival.shape
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=(0,) * shape.num_input,
        sampling=_SAMPLING,
        max_new_tokens=max(_LONGEST_OUTPUT, shape.num_output),
        stop_token_ids=frozenset({shape.num_output - 1}),
        arrived=arrival.due_s,
    )


def _until(events: deque[_Event], now: float) -> list[_Event]:
    taken = []
    while events and events[0].at_s <= now:
        taken.append(events.popleft())
    return taken
