"""The step loop's body: schedule → run → complete. Pure but for the runner it is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import EngineStats
from tandem_engine.api.request import Request
from tandem_engine.api.step import Advance, Runner, Step, StepResult
from tandem_engine.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one step came to."""

    step: Step
    advances: list[Advance] = field(default_factory=list)
    """Requests that got a token."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Requests that died in this step → why; their blocks are free again."""


class Engine:
    """One replica's requests, from arrival to last token."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self._scheduler = scheduler
        self._runner = runner

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Take a request; its first step comes when the scheduler says so."""
        self._runner.add(request)
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Forget a request and free what it holds; unknown ids are ignored."""
        self._scheduler.abort(request_id)
        self._runner.remove(request_id)

    def step(self) -> Progress:
        """Compute one step.

        A step that raises takes down the requests that were in it, with the cause, and no other.
        """
        step = self._scheduler.schedule()
        try:
            result = self._runner.run(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other requests go on
            cause = f"{type(error).__name__}: {error}"
            result = StepResult(failed=dict.fromkeys(step.num_tokens, cause))
        advances = self._scheduler.complete(step, result.tokens)
        self._forget(result, advances)
        return Progress(step=step, advances=advances, failed=result.failed)

    def reconfigure(self, schedule: ScheduleConfig) -> None:
        """Take over live settings from the next step on."""
        self._scheduler.reconfigure(schedule)

    def stats(self) -> EngineStats:
        """Queues and blocks as data."""
        return self._scheduler.stats()

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost or held twice."""
        self._scheduler.check_integrity()

    def _forget(self, result: StepResult, advances: list[Advance]) -> None:
        for request_id in result.failed:
            self.abort(request_id)
        for advance in advances:
            if advance.finish_reason is not None:
                self._runner.remove(advance.request_id)
