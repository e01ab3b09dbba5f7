"""The real scheduler under a virtual clock: only the time of a step is made up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from benchmarks.scheduling.machines import NoisyMachine
from benchmarks.scheduling.policies import Policy
from benchmarks.serving.case import Shape
from benchmarks.serving.outcome import Outcome
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.trace import Arrival
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Advance
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner

_MILLISECONDS: Final = 1e3
_LONGEST_OUTPUT: Final = 1024
_CHECK_EVERY: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Result of one simulated load."""

    outcomes: Sequence[Outcome]
    """Of the requests that ended."""
    wall_s: float
    """From the first arrival to the end of the last answer."""
    num_steps: int
    num_preemptions: int
    ended_early: bool = False
    """True when the run ended early: too many requests had missed a target for good."""


class MissLimit:
    """Counts the requests that miss a target, to end a hopeless run early.

    Args:
        targets: Latency targets of every request.
        most: Requests that may miss one of the two, or both.
    """

    def __init__(self, targets: LatencyTargets, most: float) -> None:
        self._ttft_s = (targets.ttft_ms or inf) / _MILLISECONDS
        self._tpot_s = (targets.tpot_ms or inf) / _MILLISECONDS
        self._most = most
        self._num_missed = 0

    def note_first(self, ttft_s: float) -> None:
        """Count a first token."""
        self._num_missed += ttft_s > self._ttft_s

    def note_end(self, ttft_s: float, tpot_s: float | None) -> None:
        """Count the end of an answer whose first token was counted."""
        in_time = ttft_s <= self._ttft_s
        self._num_missed += in_time and tpot_s is not None and tpot_s > self._tpot_s

    def is_exceeded(self, waiting_since: Sequence[float], now: float) -> bool:
        """True when too many have missed one, those still waiting for a first token included."""
        late = sum(now - since > self._ttft_s for since in waiting_since)
        return self._num_missed + late > self._most


class Simulator:
    """Runs one load.

    Args:
        policy: The policy.
        machine: Gives the time of each step.
        num_blocks: KV blocks of the pool.
        limit: When to give up; None: never.
    """

    def __init__(
        self,
        policy: Policy,
        machine: NoisyMachine,
        *,
        num_blocks: int,
        limit: MissLimit | None = None,
    ) -> None:
        block_size = policy.schedule.cache_block_size
        pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(policy.schedule, pool, slo=policy.slo)
        """The scheduler that is measured."""
        self._machine = machine
        self._runner = CountingRunner(block_size=block_size, checks=False)
        self._limit = limit
        self._shapes: dict[str, tuple[Shape, float]] = {}
        self._firsts: dict[str, float] = {}
        self._outcomes: list[Outcome] = []
        self._num_steps = 0

    def run(self, load: Sequence[Arrival]) -> SimulationResult:
        """Serve the load to its end, or until the limit is passed."""
        now = 0.0
        coming = _requests(load)
        upcoming = next(coming, None)
        while upcoming is not None or self.scheduler.has_work:
            while upcoming is not None and upcoming[1].arrived <= now:
                self._add(*upcoming)
                upcoming = next(coming, None)
            next_arrival = inf if upcoming is None else upcoming[1].arrived
            if not self.scheduler.has_work:
                now = next_arrival
                continue
            now = self._step(now, next_arrival)
            if self._ends_early(now):
                return self._seen(now, ended_early=True)
        return self._seen(now, ended_early=False)

    def _add(self, shape: Shape, request: Request) -> None:
        self._shapes[request.request_id] = (shape, request.arrived)
        self._runner.add(request)
        self.scheduler.add(request)

    def _step(self, now: float, next_arrival: float) -> float:
        """Compute a step; return when it ends, or when to schedule again after an empty one."""
        step = self.scheduler.schedule(now)
        ended = now + self._machine.seconds(step) if step.sequence_ids else now
        for advance in self.scheduler.complete(step, self._runner.run(step), ended):
            self._note(advance, ended)
        for sequence_id in self.scheduler.take_ended():
            self._runner.remove(sequence_id)
        self._num_steps += 1
        if step.sequence_ids:
            return ended
        later = min(next_arrival, self.scheduler.wake_at)
        if not now < later < inf:
            raise RuntimeError(f"an empty step at {now} s, and nothing to wait for")
        return later

    def _note(self, advance: Advance, now: float) -> None:
        name = advance.sequence_id
        shape, arrived = self._shapes[name]
        if name not in self._firsts:
            self._firsts[name] = now
            if self._limit is not None:
                self._limit.note_first(now - arrived)
        if advance.finish_reason is None:
            return
        del self._shapes[name]
        times = (self._firsts.pop(name), now)
        outcome = Outcome(shape=shape, due_s=arrived, end_s=now, event_times_s=times)
        self._outcomes.append(outcome)
        if self._limit is not None:
            self._limit.note_end(outcome.ttft_s, outcome.tpot_s)

    def _ends_early(self, now: float) -> bool:
        if self._limit is None or self._num_steps % _CHECK_EVERY:
            return False
        waiting = [since for name, (_, since) in self._shapes.items() if name not in self._firsts]
        return self._limit.is_exceeded(waiting, now)

    def _seen(self, now: float, *, ended_early: bool) -> SimulationResult:
        return SimulationResult(
            outcomes=self._outcomes,
            wall_s=now,
            num_steps=self._num_steps,
            num_preemptions=self.scheduler.stats().num_preemptions,
            ended_early=ended_early,
        )


def _requests(load: Sequence[Arrival]) -> Iterator[tuple[Shape, Request]]:
    """The load as requests, and their true lengths.

    The scheduler must not know how long an answer gets: the k-th token of the counting runner is
    k, so the last one is an end token, long before the longest answer that is allowed.
    """
    sampling = SamplingParams(max_tokens=_LONGEST_OUTPUT)
    for number, arrival in enumerate(load):
        shape = arrival.shape
        yield (
            shape,
            Request(
                request_id=f"r{number}",
                prompt_token_ids=(0,) * shape.num_input,
                sampling=sampling,
                max_new_tokens=max(_LONGEST_OUTPUT, shape.num_output),
                stop_token_ids=frozenset({shape.num_output - 1}),
                arrived=arrival.due_s,
            ),
        )
