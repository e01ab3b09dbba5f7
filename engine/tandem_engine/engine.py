"""The step loop's body: schedule → run → complete. Pure but for the runner it is given.

With async scheduling, the next step is made and handed in while one is computed, so that the device
has no gap between the two; with several pipeline stages, there is a step in flight for each of
them. `Scheduler.can_schedule_async` says when it may be.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.drafts import DraftLimits
from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.output import EngineStats, PromptLogprobs
from tandem_engine.api.request import Request
from tandem_engine.api.slo import Slo
from tandem_engine.api.step import Advance, Runner, Step, StepHandle, StepResult
from tandem_engine.scheduler.latency.step_model import StepPrices
from tandem_engine.scheduler.records.records import Records, StepRecord
from tandem_engine.scheduler.scheduler import Scheduler

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The outcome of one step."""

    step: Step
    advances: list[Advance] = field(default_factory=list)
    """Sequences that got tokens."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Sequences that failed in this step → the cause; their blocks are free again."""
    expired: Sequence[str] = ()
    """Sequences that were not in this step because their deadline was over; they are forgotten."""
    prompt_logprobs: Mapping[str, PromptLogprobs] = field(default_factory=dict)
    """See `StepResult`."""
    record: StepRecord | None = None
    """Its inputs and its duration."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that is computed, or will be when its result is asked for."""

    step: Step
    record: StepRecord | None
    handle: StepHandle


@dataclass(frozen=True, slots=True)
class _OnDemand:
    """A step that is computed when its result is asked for; a `StepHandle`."""

    runner: Runner
    step: Step
    has_failed = False

    def result(self) -> StepResult:
        """Compute it."""
        return self.runner.run(self.step)


@dataclass(frozen=True, slots=True)
class _Failed:
    """A step that could not be submitted; a `StepHandle`."""

    error: Exception
    has_failed = True

    def result(self) -> StepResult:
        """Raise the reason."""
        raise self.error


class Engine:
    """One replica's requests, from arrival to last token."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self._scheduler = scheduler
        self._runner = runner
        # Steps in flight, the oldest first.
        self._launched: deque[_Launched] = deque()

    @property
    def has_work(self) -> bool:
        """True while a request runs or waits, or a step is still computed."""
        return bool(self._launched) or self._scheduler.has_work

    @property
    def wake_at(self) -> float:
        """Seconds; after an empty step, the time at which the next one may have rows."""
        return self._scheduler.wake_at

    @property
    def records(self) -> Records:
        """Records of the last steps."""
        return self._scheduler.records

    @property
    def step_prices(self) -> StepPrices:
        """The scheduler's model of step times, as of its last fit."""
        return self._scheduler.step_prices

    def can_ever_hold(self, request: Request) -> bool:
        """Return True if the KV blocks suffice for a request that runs alone."""
        return self._scheduler.can_ever_hold(request)

    def add(self, request: Request) -> None:
        """Take a request; its first step comes when the scheduler says so.

        Nothing of it is kept when this raises.
        """
        try:
            self._runner.add(request)
            self._scheduler.add(request)
        except Exception:
            for sequence_id in request.sequences:
                self._scheduler.abort(sequence_id)
                self._runner.remove(sequence_id)
            self._forget()
            raise

    def abort(self, sequence_id: str) -> None:
        """Forget a sequence and free what it holds; unknown ids are ignored."""
        self._scheduler.abort(sequence_id)
        self._forget()

    def step(self, clock: Clock) -> Progress:
        """Compute one step, which may be empty while a batch forms.

        A step that raises fails the sequences in it and those whose blocks it was to move, with the
        cause, and no other.

        Args:
            clock: Returns the time in seconds; the clock of `Request.arrived`.

        Raises:
            ReplicaLost: No step can be computed any more.
        """
        now = clock()
        expired = self._expire(now)
        self._launch(now, clock)
        current = self._launched.popleft()
        try:
            result = current.handle.result()
        except ReplicaLost:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other requests go on
            result = StepResult(failed=_lost_with(current.step, error))
        failed = self._scheduler.all_of(result.failed)
        advances = self._scheduler.complete(current.step, result, clock())
        self._forget()
        return Progress(
            step=current.step,
            advances=advances,
            failed=failed,
            expired=expired,
            prompt_logprobs=result.prompt_logprobs,
            record=current.record,
        )

    def close(self) -> None:
        """Stop computing; steps that were submitted ahead of time are dropped."""
        self._launched.clear()
        self._runner.close()

    def reconfigure(self, schedule: ScheduleConfig, slo: Slo | None = None) -> None:
        """Take over live settings from the next step on."""
        self._scheduler.reconfigure(schedule, slo)

    def stats(self) -> EngineStats:
        """Queues and blocks as data."""
        return self._scheduler.stats()

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost or held by another number than holds it."""
        self._scheduler.check_integrity()

    def _expire(self, now: float) -> list[str]:
        expired = self._scheduler.expire(now)
        if expired:
            self._forget()
        return expired

    def _launch(self, now: float, clock: Clock) -> None:
        """Have as many steps in flight as there may be, and at least one."""
        launched = self._launched
        if not launched:
            launched.append(self._launch_first(self._schedule(now, clock)))
        # No step can count on the tokens of one that has failed.
        while len(launched) < self._scheduler.max_in_flight and not _has_failed(launched):
            if not self._scheduler.can_schedule_async or self._awaits_drafts():
                return
            step = self._scheduler.schedule_async(now)
            if step is None:
                return
            launched.append(_Launched(step, self._scheduler.records.last, self._submit(step)))

    def _launch_first(self, step: Step) -> _Launched:
        """Submit a step if the next may be scheduled meanwhile; else compute it on demand."""
        record = self._scheduler.records.last
        if not self._scheduler.can_schedule_async:
            return _Launched(step, record, _OnDemand(self._runner, step))
        return _Launched(step, record, self._submit(step))

    def _schedule(self, now: float, clock: Clock) -> Step:
        """Have drafts proposed, and schedule the step that checks them."""
        limits = self._scheduler.drafting()
        if not limits:
            return self._scheduler.schedule(now)
        proposals = self._runner.propose(limits)
        if not proposals.num_passes:
            # Looking up takes microseconds, which are the step's.
            return self._scheduler.schedule(now, proposals)
        proposed_at = clock()
        return self._scheduler.schedule(proposed_at, proposals, drafting_s=proposed_at - now)

    def _awaits_drafts(self) -> bool:
        """Return True where the next step is to have drafts, and so waits for the tokens before.

        Of texts that are looked up now the first tokens are those that steps in flight compute. A
        draft model cannot begin before it has those.
        """
        limits = self._scheduler.drafting()
        if limits.draft or not limits:
            return bool(limits)
        num_in_flight = len(self._launched)
        drafts = self._runner.propose(DraftLimits(ngram=limits.ngram)).drafts
        return any(len(draft.token_ids) > num_in_flight for draft in drafts.values())

    def _submit(self, step: Step) -> StepHandle:
        try:
            return self._runner.submit(step)
        except Exception as error:  # noqa: BLE001 - it is the step's, and raised in its turn
            return _Failed(error)

    def _forget(self) -> None:
        for sequence_id in self._scheduler.take_ended():
            self._runner.remove(sequence_id)


def _has_failed(launched: Iterable[_Launched]) -> bool:
    return any(each.handle.has_failed for each in launched)


def _lost_with(step: Step, error: Exception) -> dict[str, str]:
    """Return the sequences lost with a step whose copies may not be made, each with the cause."""
    cause = f"{type(error).__name__}: {error}"
    moved = f"its KV blocks were lost with a step that failed: {cause}"
    return {**dict.fromkeys(step.moved, moved), **dict.fromkeys(step.sequence_ids, cause)}
