"""The order in which a machine starts: steps that wait for steps, no clock and no processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto


class _Stage(Enum):
    WAITS = auto()
    RUNS = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to start, and the condition on which it counts as there."""

    name: str
    after: Sequence[str] = ()
    start: Callable[[], None]
    is_done: Callable[[], bool]


class Startup:
    """Starts every step as soon as those before it are done."""

    def __init__(self, steps: Sequence[Step], on_done: Callable[[str], None]) -> None:
        self._steps = steps
        self._on_done = on_done
        self._stages = dict.fromkeys((step.name for step in steps), _Stage.WAITS)
        for step in steps:
            unknown = [name for name in step.after if name not in self._stages]
            if unknown:
                raise ValueError(f"step {step.name} waits for {unknown[0]}, which is no step")

    def tick(self) -> bool:
        """Start what can start, ask what runs; whether all steps are done."""
        for step in self._steps:
            self._advance(step)
        return all(stage is _Stage.DONE for stage in self._stages.values())

    @property
    def running(self) -> list[str]:
        """Steps that have started and are not done."""
        return [name for name, stage in self._stages.items() if stage is _Stage.RUNS]

    def _advance(self, step: Step) -> None:
        stage = self._stages[step.name]
        if stage is _Stage.WAITS and self._may_start(step):
            step.start()
            self._stages[step.name] = _Stage.RUNS
        elif stage is _Stage.RUNS and step.is_done():
            self._stages[step.name] = _Stage.DONE
            self._on_done(step.name)

    def _may_start(self, step: Step) -> bool:
        return all(self._stages[name] is _Stage.DONE for name in step.after)
