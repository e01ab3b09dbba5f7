"""The thread that steps the engine: take commands → step → deliver."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.errors import DeadlineExceeded, EngineStopped, ReplicaLost, RequestFailed
from tandem_engine.api.output import EngineStats, Output
from tandem_engine.api.request import Request
from tandem_engine.api.slo import Slo
from tandem_engine.api.step import Advance
from tandem_engine.api.steps import StepExplanation
from tandem_engine.async_engine.choice import Choice
from tandem_engine.async_engine.gc_threshold import raise_gc_threshold
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.micro_batch_log import MicroBatchLog
from tandem_engine.async_engine.pacer import Pacer
from tandem_engine.async_engine.stream import RequestStream
from tandem_engine.engine import Engine, Progress
from tandem_engine.scheduler.records.explain import explain
from tandem_engine.scheduler.records.records import StepRecord

_LOG = logging.getLogger(__name__)

Delivery = tuple[RequestStream, Output | Exception]

_COMMANDS_S: Final = 0.005
"""Commands between two steps take no longer, or one command: of thousands that come at once, each
step carries out some, and running answers go on meanwhile."""


@dataclass(frozen=True, slots=True)
class _Command:
    """Work between two steps, for one caller."""

    work: Callable[[], None]
    tell: Callable[[Exception], None]
    """Tell that caller alone why the work failed."""


class EngineLoop:
    """Owns the engine: nothing else touches it once the thread runs.

    Commands reach it between two steps. All outputs of one step go to the event loop in one
    call, since waking an event loop costs more than reading a token.

    Args:
        engine: The engine to step.
        metrics: Takes the figures of the steps.
        schedule: The settings that the engine was made with.
        micro_batches: Logs what they bring; None: there are none.
        turn: Entered for each step, and left when its outputs are delivered.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: EngineMetrics,
        schedule: ScheduleConfig,
        micro_batches: MicroBatchLog | None = None,
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._micro_batches = micro_batches
        self._turn = turn
        self._pacer = Pacer[Delivery](schedule)
        self._commands: queue.SimpleQueue[_Command | ReplicaLost | None] = queue.SimpleQueue()
        self._choices: dict[str, Choice] = {}
        # True from the first traced request on.
        self._notes_chunks = False
        self._thread = threading.Thread(target=self._run, name="tandem-engine", daemon=True)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        # Seconds until which there is nothing to compute: a batch is forming.
        self._sleeps_until = -inf
        # Held where a request comes in and where the thread ends: none may slip in between.
        self._ending = threading.Lock()
        self.stats: EngineStats = engine.stats()
        self.stopped: EngineStopped | None = None
        metrics.watch_queue(self.queue_age_s)

    def start(self) -> None:
        """Start the thread."""
        raise_gc_threshold()
        self._metrics.state(self.stats)
        self._thread.start()

    def attach(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop that reads the streams."""
        self._event_loop = event_loop

    def can_ever_hold(self, request: Request) -> bool:
        """True when the KV blocks suffice for a request that runs alone; from any thread."""
        return self._engine.can_ever_hold(request)

    def begin(self, request: Request, choices: Sequence[Choice]) -> None:
        """Queue a request whose outputs are `choices`; from any thread.

        Raises:
            EngineStopped: the thread has ended, nothing would answer.
        """
        with self._ending:
            if self.stopped is not None:
                raise self.stopped
            self._commands.put(
                _Command(
                    partial(self._begin, request, choices), partial(self._refuse, choices[0].stream)
                )
            )

    def abort(self, sequence_ids: Sequence[str]) -> None:
        """Free what these sequences hold, between two steps; from any thread."""
        # A caller that has left gets no answer.
        self._commands.put(_Command(partial(self._abort, sequence_ids), lambda _error: None))

    def reconfigure(self, schedule: ScheduleConfig, slo: Slo) -> "Future[None]":
        """Take over live settings between two steps; from any thread.

        Returns:
            Done when they are taken over; an exception means that the old ones are in force.

        Raises:
            EngineStopped: the thread has ended.
        """
        changed: Future[None] = Future()

        def change() -> None:
            self._reconfigure(schedule, slo)
            changed.set_result(None)

        with self._ending:
            if self.stopped is not None:
                raise self.stopped
            self._commands.put(_Command(change, changed.set_exception))
        return changed

    def steps(self, since: int, limit: int, *, with_decodes: bool) -> list[StepExplanation]:
        """Explain the last steps; from any thread."""
        epoch_s = time.time() - time.perf_counter()
        records = self._engine.records.since(since, limit)
        return explain(records, epoch_s=epoch_s, with_decodes=with_decodes)

    def queue_age_s(self) -> float:
        """Seconds for which the oldest request without a step has waited; from any thread."""
        # A copy of a dictionary is one operation: the engine's thread cannot get in between.
        choices = self._choices.copy().values()
        arrivals = (
            choice.timeline.arrived for choice in choices if choice.timeline.scheduled is None
        )
        oldest = next(arrivals, None)
        return 0.0 if oldest is None else max(0.0, time.perf_counter() - oldest)

    def stop(self) -> None:
        """End the thread between two steps; from any thread."""
        self._commands.put(None)

    def lose(self, reason: ReplicaLost) -> None:
        """End the thread between two steps, since none can be computed; from any thread.

        Running and new requests end with `reason`. The engine is unhealthy at once: the step that
        runs may never end.
        """
        with self._ending:
            self.stopped = self.stopped or reason
        self._commands.put(reason)

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_commands():
                with self._turn():
                    self._step()
            self._end(EngineStopped("The engine has stopped."))
        except ReplicaLost as reason:
            _LOG.error("The replica is lost: %s", reason)
            self._end(reason)
        except Exception as error:  # noqa: BLE001 - the top of a thread: say it, and end
            _LOG.exception("The engine's loop died")
            self._end(EngineStopped(f"The engine died: {type(error).__name__}: {error}."))

    def _take_commands(self) -> bool:
        """Carry out commands that have come; wait when there is nothing to do. False: stop.

        Raises:
            ReplicaLost: `lose` was called.
        """
        ends = inf
        while not (self._engine.has_work and time.perf_counter() > ends):
            wait_s = self._idle_s()
            if wait_s:
                self._publish()
            try:
                command = self._commands.get(
                    block=wait_s > 0, timeout=None if wait_s == inf else wait_s
                )
            except queue.Empty:
                if self._engine.has_work:
                    return True
                self._deliver(self._pacer.due(time.perf_counter()))
                continue
            if command is None:
                return False
            if isinstance(command, ReplicaLost):
                raise command
            # A forming batch may have waited for this command.
            self._sleeps_until = -inf
            ends = min(ends, time.perf_counter() + _COMMANDS_S)
            self._carry_out(command)
        return True

    def _carry_out(self, command: _Command) -> None:
        """Do what one caller asks for; if it fails, the others go on.

        If the engine's state is broken afterwards, the thread ends, and every caller learns of it.
        """
        try:
            command.work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other callers go on
            _LOG.exception("A command to the engine failed")
            command.tell(error)
            self._engine.check_integrity()

    def _idle_s(self) -> float:
        """Seconds without work, unless a command comes; inf: for ever."""
        until = self._sleeps_until if self._engine.has_work else inf
        until = min(until, self._pacer.next_due())
        return inf if until == inf else max(0.0, until - time.perf_counter())

    def _step(self) -> None:
        progress = self._engine.step(time.perf_counter)
        now = time.perf_counter()
        self._sleeps_until = -inf if progress.step.sequence_ids else self._engine.wake_at
        self._observe(progress)
        self._note_prompt_logprobs(progress)
        self._publish()
        if self._micro_batches is not None:
            self._micro_batches.step(now)
        self._deliver(
            [
                *self._outputs(progress, now),
                *self._failures(progress, now),
                *self._expired(progress, now),
                *self._pacer.due(now),
            ]
        )

    def _begin(self, request: Request, choices: Sequence[Choice]) -> None:
        self._metrics.received(
            len(request.prompt_token_ids),
            len(choices),
            priority=request.priority,
            timelines=[choice.timeline for choice in choices],
        )
        try:
            self._engine.add(request)
        except Exception:
            self._metrics.failed(len(choices))
            raise
        for choice in choices:
            self._choices[choice.sequence_id] = choice
        if choices[0].timeline.chunks is not None:
            self._notes_chunks = True

    def _refuse(self, stream: RequestStream, error: Exception) -> None:
        """Tell a request that it was never begun."""
        if not isinstance(error, EngineStopped):
            error = RequestFailed(f"The request failed: {type(error).__name__}: {error}.")
        self._deliver([(stream, error)])

    def _abort(self, sequence_ids: Sequence[str]) -> None:
        errors: list[Exception] = []
        for sequence_id in sequence_ids:
            try:
                self._abort_one(sequence_id)
            except Exception as error:  # noqa: BLE001 - the others are to be given up all the same
                errors.append(error)
        if errors:
            raise ExceptionGroup("Sequences could not be given up", errors)

    def _abort_one(self, sequence_id: str) -> None:
        self._pacer.drop(sequence_id)
        if self._choices.pop(sequence_id, None) is not None:
            self._metrics.aborted()
        self._engine.abort(sequence_id)

    def _reconfigure(self, schedule: ScheduleConfig, slo: Slo) -> None:
        self._engine.reconfigure(schedule, slo)
        self._pacer.schedule = schedule
        self._metrics.reconfigure(schedule, slo)

    def _observe(self, progress: Progress) -> None:
        record = progress.record
        self._metrics.step(
            record, num_sampled=sum(len(advance.tokens) for advance in progress.advances)
        )
        if record is None:
            return
        for sequence_id, num_cached in record.hits.items():
            choice = self._choices.get(sequence_id)
            if choice is not None and choice.timeline.scheduled is None:
                choice.stream.num_cached_tokens = num_cached
                self._schedule_all(choice.request, record.started, num_cached)
        if self._notes_chunks:
            self._note_chunks(record)

    def _note_chunks(self, record: StepRecord) -> None:
        """Note the parts of prompts that a step computed in the timelines of traced requests."""
        step = record.step
        for row in range(step.num_decodes, len(step.sequence_ids)):
            choice = self._choices.get(step.sequence_ids[row])
            if choice is not None and choice.timeline.chunks is not None:
                choice.timeline.chunks.append((record.started, step.num_tokens[row]))

    def _schedule_all(self, request: Request, started: float, num_cached: int) -> None:
        """Note the first step of a request, which is that of all its choices."""
        self._metrics.admitted(len(request.prompt_token_ids), num_cached, len(request.sequences))
        for sequence_id in request.sequences:
            choice = self._choices.get(sequence_id)
            if choice is not None:
                choice.timeline.scheduled = started
                # The others have the prompt of the first.
                choice.timeline.num_cached = (
                    num_cached if choice.index == 0 else len(request.prompt_token_ids)
                )
                self._metrics.scheduled(choice.timeline)

    def _note_prompt_logprobs(self, progress: Progress) -> None:
        for sequence_id, part in progress.prompt_logprobs.items():
            choice = self._choices.get(sequence_id)
            if choice is not None:
                choice.prompt_logprobs.append(part)

    def _outputs(self, progress: Progress, now: float) -> list[Delivery]:
        deliveries: list[Delivery] = []
        gaps: list[float] = []
        for advance in progress.advances:
            choice = self._choices.get(advance.sequence_id)
            if choice is not None:
                deliveries += self._output(choice, advance, now, gaps)
        if gaps:
            self._metrics.next_tokens(gaps)
        return deliveries

    def _output(
        self, choice: Choice, advance: Advance, now: float, gaps: list[float]
    ) -> Sequence[Delivery]:
        """Return the deliveries of one sequence's tokens; add the gaps before them to `gaps`."""
        try:
            output = choice.output(advance)
        except Exception as error:  # noqa: BLE001 - one text that cannot be decoded, one request
            return self._fail(advance.sequence_id, f"{type(error).__name__}: {error}", now)
        # With max_tokens 0 there is none to show, and its moment is the prompt's end.
        for _ in output.token_ids or (None,):
            since_last = choice.timeline.token(now)
            if since_last is None:
                self._note_first_token(choice)
            else:
                gaps.append(since_last)
        if output.finish_reason is not None:
            self._finish(choice, now)
        delivery = (choice.stream, output)
        arrived = choice.timeline.arrived
        return self._pacer.push(advance.sequence_id, delivery, output, arrived=arrived, now=now)

    def _note_first_token(self, choice: Choice) -> None:
        if choice.index == 0:
            self._metrics.prompt_done(len(choice.request.prompt_token_ids))
        self._metrics.first_token(choice.timeline)

    def _finish(self, choice: Choice, now: float) -> None:
        del self._choices[choice.sequence_id]
        # A stop string is known here only; to the engine the request would still go on.
        self._engine.abort(choice.sequence_id)
        self._metrics.finished(choice.timeline, now, len(choice.request.prompt_token_ids))

    def _failures(self, progress: Progress, now: float) -> list[Delivery]:
        failed = progress.failed.items()
        return [
            output
            for sequence_id, cause in failed
            for output in self._fail(sequence_id, cause, now)
        ]

    def _fail(self, sequence_id: str, cause: str, now: float) -> list[Delivery]:
        choice = self._choices.pop(sequence_id, None)
        self._engine.abort(sequence_id)
        if choice is None:
            return []
        _LOG.error("Request %s failed: %s", sequence_id, cause)
        self._metrics.failed()
        return self._end_with(choice, RequestFailed(f"The request failed: {cause}."), now)

    def _expired(self, progress: Progress, now: float) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for sequence_id in progress.expired:
            choice = self._choices.pop(sequence_id, None)
            if choice is not None:
                self._metrics.expired()
                deliveries += self._end_with(choice, _too_late(choice), now)
        return deliveries

    def _end_with(self, choice: Choice, error: Exception, now: float) -> list[Delivery]:
        """End a choice with an error, behind all of its outputs."""
        arrived = choice.timeline.arrived
        return self._pacer.push(
            choice.sequence_id, (choice.stream, error), None, arrived=arrived, now=now
        )

    def _publish(self) -> None:
        self.stats = self._engine.stats()
        engine = self._engine
        self._metrics.state(self.stats, engine.records.waited_s, engine.step_prices)

    def _end(self, reason: EngineStopped) -> None:
        with self._ending:
            self.stopped = reason
        ended = [(choice.stream, reason) for choice in self._choices.values()]
        self._deliver([*self._pacer.flush(), *ended])
        self._choices.clear()
        while not self._commands.empty():
            # Commands that came in before the end are not carried out any more.
            command = self._commands.get()
            if isinstance(command, _Command):
                command.tell(reason)
        self._engine.close()

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries or self._event_loop is None:
            return
        try:
            self._event_loop.call_soon_threadsafe(_hand_over, deliveries)
        except RuntimeError:  # the event loop has closed: its streams have no reader
            _LOG.debug("No event loop to deliver to")


def _too_late(choice: Choice) -> DeadlineExceeded:
    request, timeline = choice.request, choice.timeline
    if timeline.scheduled is None:
        state = "it waited in the queue"
    else:
        state = f"{timeline.num_tokens} tokens were generated"
    return DeadlineExceeded(
        f"The request exceeded its deadline of {request.deadline - request.arrived:.3g} s in the "
        f"engine: {state}. Allow more time, ask for fewer tokens, or send fewer requests at once."
    )


def _hand_over(deliveries: Sequence[Delivery]) -> None:
    """Feed the streams; runs on the event loop."""
    for stream, item in deliveries:
        if isinstance(item, Exception):
            stream.fail(item)
        else:
            stream.feed(item)
