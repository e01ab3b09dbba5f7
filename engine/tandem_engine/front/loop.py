"""The thread that steps the engine: take commands → step → deliver."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.errors import EngineStopped, RequestFailed
from tandem_engine.api.output import EngineStats, Output
from tandem_engine.api.step import Advance
from tandem_engine.engine import Engine, Progress
from tandem_engine.front.choice import Choice
from tandem_engine.front.metrics import EngineMetrics
from tandem_engine.front.stream import RequestStream

_LOG = logging.getLogger(__name__)

Command = Callable[[], None]
Delivery = tuple[RequestStream, Output | Exception]


class EngineLoop:
    """Owns the engine: nothing else touches it once the thread runs.

    Commands reach it between two steps. All outputs of one step go to the event loop in one
    call, since waking an event loop costs more than reading a token.
    """

    def __init__(self, engine: Engine, metrics: EngineMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._choices: dict[str, Choice] = {}
        self._thread = threading.Thread(target=self._run, name="tandem-engine", daemon=True)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        # Held where a request comes in and where the thread ends: none may slip in between.
        self._ending = threading.Lock()
        self.stats: EngineStats = engine.stats()
        self.stopped: EngineStopped | None = None

    def start(self) -> None:
        """Start the thread."""
        self._metrics.state(self.stats)
        self._thread.start()

    def attach(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """Say where the streams are read."""
        self._event_loop = event_loop

    def begin(self, choices: Sequence[Choice]) -> None:
        """Queue the choices of a request; from any thread.

        Raises:
            EngineStopped: the thread has ended, nothing would answer.
        """
        with self._ending:
            if self.stopped is not None:
                raise self.stopped
            self._commands.put(lambda: self._begin(choices))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Free what these requests hold, before the next step; from any thread."""
        self._commands.put(lambda: self._abort(request_ids))

    def reconfigure(self, schedule: ScheduleConfig) -> None:
        """Take over live settings before the next step; from any thread."""
        self._commands.put(lambda: self._engine.reconfigure(schedule))

    def stop(self) -> None:
        """End the thread after the step that runs; from any thread."""
        self._commands.put(None)

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._step()
            self._end(EngineStopped("The engine has stopped."))
        except Exception as error:  # noqa: BLE001 - the top of a thread: say it, and end
            _LOG.exception("The engine's loop died")
            self._end(EngineStopped(f"The engine died: {type(error).__name__}: {error}."))

    def _take_commands(self) -> bool:
        """Carry out what has come in; wait when there is nothing to do. False: stop."""
        while True:
            idle = not self._engine.has_work
            if idle:
                self._publish()
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _step(self) -> None:
        started = time.perf_counter()
        progress = self._engine.step()
        now = time.perf_counter()
        self._observe(progress, started=started, now=now)
        self._publish()
        self._deliver([*self._outputs(progress, now), *self._failures(progress)])

    def _begin(self, choices: Sequence[Choice]) -> None:
        self._metrics.received(len(choices))
        for choice in choices:
            self._choices[choice.request.request_id] = choice
            self._engine.add(choice.request)

    def _abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if self._choices.pop(request_id, None) is not None:
                self._engine.abort(request_id)
                self._metrics.aborted()

    def _observe(self, progress: Progress, *, started: float, now: float) -> None:
        step = progress.step
        for request_id in step.num_tokens:
            timeline = self._choices[request_id].timeline
            if timeline.scheduled is None:
                timeline.scheduled = started
                self._metrics.scheduled(timeline)
        self._metrics.step(
            duration=now - started,
            num_tokens=step.total_tokens,
            num_sampled=len(progress.advances),
        )

    def _outputs(self, progress: Progress, now: float) -> list[Delivery]:
        return [self._output(advance, now) for advance in progress.advances]

    def _output(self, advance: Advance, now: float) -> Delivery:
        choice = self._choices[advance.request_id]
        self._note_token(choice, now)
        try:
            output = choice.output(advance)
        except Exception as error:  # noqa: BLE001 - one text that cannot be decoded, one request
            return self._fail(choice.request.request_id, f"{type(error).__name__}: {error}")
        if output.finish_reason is not None:
            self._finish(choice, now)
        return choice.stream, output

    def _note_token(self, choice: Choice, now: float) -> None:
        since_last = choice.timeline.token(now)
        if since_last is None:
            self._metrics.first_token(choice.timeline, len(choice.request.prompt_token_ids))
        else:
            self._metrics.next_token(since_last)

    def _finish(self, choice: Choice, now: float) -> None:
        request_id = choice.request.request_id
        del self._choices[request_id]
        # A stop string is known here only; to the engine the request would still go on.
        self._engine.abort(request_id)
        self._metrics.finished(choice.timeline, now)

    def _failures(self, progress: Progress) -> list[Delivery]:
        return [self._fail(request_id, cause) for request_id, cause in progress.failed.items()]

    def _fail(self, request_id: str, cause: str) -> Delivery:
        _LOG.error("Request %s failed: %s", request_id, cause)
        self._metrics.failed()
        self._engine.abort(request_id)
        error = RequestFailed(f"The request failed: {cause}.")
        return self._choices.pop(request_id).stream, error

    def _publish(self) -> None:
        self.stats = self._engine.stats()
        self._metrics.state(self.stats)

    def _end(self, reason: EngineStopped) -> None:
        with self._ending:
            self.stopped = reason
        try:
            self._drop_commands()
        except Exception:  # noqa: BLE001 - the engine is gone; the streams must learn of it
            _LOG.exception("A last command failed")
        finally:
            self._deliver([(choice.stream, reason) for choice in self._choices.values()])
            self._choices.clear()

    def _drop_commands(self) -> None:
        """Carry out what came in before the end, so that its streams learn of the end too."""
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries or self._event_loop is None:
            return
        try:
            self._event_loop.call_soon_threadsafe(_hand_over, deliveries)
        except RuntimeError:  # the event loop has closed: nobody reads any more
            _LOG.debug("No event loop to deliver to")


def _hand_over(deliveries: Sequence[Delivery]) -> None:
    """Runs on the event loop."""
    for stream, item in deliveries:
        if isinstance(item, Exception):
            stream.fail(item)
        else:
            stream.feed(item)
