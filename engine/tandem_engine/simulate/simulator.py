"""One load on one replica, to its end or until too many requests have missed a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from tandem_engine.simulate.replica import Completion, Progress
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.workload import Arrival

_CHECK_EVERY: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Result of one simulated load."""

    requests: Sequence[Completion]
    """Those that ended."""
    wall_s: float
    """From the first arrival to the end of the last answer."""
    num_steps: int
    num_preemptions: int
    ended_early: bool = False
    """True when the run ended early: too many requests had missed a target for good."""


class MissLimit:
    """Counts the requests that miss a target, to end a hopeless run early.

    Args:
        ttft_s: Target of the time to the first token of every request; None: no target.
        tpot_s: Target of the time of a token after it; None: no target.
        most: Requests that may miss one of the two, or both.
    """

    def __init__(self, ttft_s: float | None, tpot_s: float | None, most: float) -> None:
        self._ttft_s = inf if ttft_s is None else ttft_s
        self._tpot_s = inf if tpot_s is None else tpot_s
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
        """Return True when too many have missed one, those still without a token included."""
        late = sum(now - since > self._ttft_s for since in waiting_since)
        return self._num_missed + late > self._most


class Simulator:
    """Runs one load.

    Args:
        replica: A new one.
        limit: When to give up; None: never.
    """

    def __init__(self, replica: SchedulerReplica, limit: MissLimit | None = None) -> None:
        self._replica = replica
        self._limit = limit
        self._completions: list[Completion] = []

    def run(self, load: Sequence[Arrival]) -> SimulationResult:
        """Serve the load to its end, or until the limit is passed."""
        for arrival in load:
            if self._run_until(arrival.due_s):
                return self._result(ended_early=True)
            self._replica.submit(arrival)
        return self._result(ended_early=self._run_until(inf))

    def _run_until(self, time_s: float) -> bool:
        """Compute the steps that begin before a time; return True when the limit was passed."""
        while self._replica.next_step_s < time_s:
            self._note(self._replica.step())
            if self._ends_early():
                return True
        return False

    def _note(self, progress: Progress) -> None:
        self._completions.extend(progress.completions)
        if self._limit is None:
            return
        for first in progress.first_tokens:
            self._limit.note_first(first.ttft_s)
        for completion in progress.completions:
            self._limit.note_end(completion.ttft_s, completion.tpot_s)

    def _ends_early(self) -> bool:
        replica = self._replica
        if self._limit is None or replica.num_steps % _CHECK_EVERY:
            return False
        return self._limit.is_exceeded(replica.waiting_since, replica.now)

    def _result(self, *, ended_early: bool) -> SimulationResult:
        return SimulationResult(
            requests=self._completions,
            wall_s=self._replica.now,
            num_steps=self._replica.num_steps,
            num_preemptions=self._replica.scheduler.stats().num_preemptions,
            ended_early=ended_early,
        )
