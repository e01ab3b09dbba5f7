"""Progress of a running benchmark: a bar on a terminal, one line a load elsewhere."""

import math
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from benchmarks.serving.outcome import Outcome
from benchmarks.serving.plan import ClosedLoop, Load


class Progress:
    """A context that shows how far the load is; drawn rarely, for it shares the client's core."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=2,
            disable=not console.is_terminal,
        )
        self._task = TaskID(0)
        self._begin_s = 0.0
        self._num_done = 0
        self._num_failed = 0
        self._is_timed = False

    def __enter__(self) -> Self:
        self._bars.start()
        self._task = self._bars.add_task("", total=None, detail="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def begin_warmup(self, load: Load) -> None:
        """Show that requests run that are not counted."""
        self._bars.reset(self._task, total=None, description=load.name, detail="warming up")
        if not self._console.is_terminal:
            self._console.print(f"measuring {load.name}", markup=False)

    def begin(self, load: Load) -> None:
        """Show a load that begins now."""
        self._begin_s = time.perf_counter()
        self._num_done = self._num_failed = 0
        self._is_timed = isinstance(load, ClosedLoop) and math.isfinite(load.duration_s)
        self._bars.reset(self._task, total=_total(load), detail="")

    def note(self, outcome: Outcome) -> None:
        """Count a request that ended."""
        self._num_done += 1
        self._num_failed += outcome.failure is not None
        elapsed_s = time.perf_counter() - self._begin_s
        detail = f"{self._num_done} requests"
        if self._num_failed:
            detail += f", {self._num_failed} failed"
        completed = elapsed_s if self._is_timed else self._num_done
        self._bars.update(self._task, completed=completed, detail=detail)


def _total(load: Load) -> float | None:
    """Seconds of a load that has a duration, requests of any other."""
    if not isinstance(load, ClosedLoop):
        return len(load.arrivals)
    return load.duration_s if math.isfinite(load.duration_s) else load.num_requests
