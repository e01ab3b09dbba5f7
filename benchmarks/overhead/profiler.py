"""Times the calls of an engine's parts.

Parts are timed by the CPU time of the thread that does them, so that other work on the machine
hardly counts. Forward passes on several threads can only be timed on the wall.
"""

import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

PARTS: Final = ("schedule", "batch", "forward", "sample", "complete", "hand over")
"""In the order of a step. The last is what is left of the time of the loop's thread: detokenize,
metrics, streams, waking the event loop."""


class Profiler:
    """Times of parts, in seconds, one entry a call.

    Args:
        num_threads: Compute threads; with one, CPU time counts for forward passes too.
    """

    def __init__(self, num_threads: int) -> None:
        self._by_cpu = num_threads == 1
        self._loop: int | None = None
        self._inside = 0.0
        self.taken: dict[str, list[float]] = {part: [] for part in PARTS}
        self.began: list[float] = []
        """Seconds on the wall, when each forward pass began."""
        self.lasted: list[float] = []
        """Seconds on the wall of each forward pass."""

    def clear(self) -> None:
        """Drop all times."""
        for times in (*self.taken.values(), self.began, self.lasted):
            times.clear()

    def time_calls(self, owner: Any, name: str, part: str) -> None:
        """Time the calls of a method of one object."""
        times = self.taken[part]
        self._wrap(owner, name, lambda cpu_s, _begin, _wall_s: times.append(cpu_s))

    def time_forward(self, owner: Any, name: str) -> None:
        """Time forward passes, and note when they began."""

        def note(cpu_s: float, begin: float, wall_s: float) -> None:
            self.taken["forward"].append(cpu_s if self._by_cpu else wall_s)
            self.began.append(begin)
            self.lasted.append(wall_s)

        self._wrap(owner, name, note)

    def time_loop(self, owner: Any, name: str) -> None:
        """Time whole turns of the loop; the rest beside its parts is the hand-over."""
        inner = getattr(owner, name)

        @wraps(inner)
        def turn(*args: Any) -> Any:
            self._loop, self._inside = threading.get_ident(), 0.0
            begin = time.thread_time()
            result = inner(*args)
            self.taken["hand over"].append(time.thread_time() - begin - self._inside)
            return result

        setattr(owner, name, turn)

    def _wrap(self, owner: Any, name: str, note: Callable[[float, float, float], None]) -> None:
        inner = getattr(owner, name)

        @wraps(inner)
        def timed(*args: Any, **given: Any) -> Any:
            begin_wall, begin = time.perf_counter(), time.thread_time()
            try:
                return inner(*args, **given)
            finally:
                cpu_s = time.thread_time() - begin
                note(cpu_s, begin_wall, time.perf_counter() - begin_wall)
                if threading.get_ident() == self._loop:
                    self._inside += cpu_s

        setattr(owner, name, timed)
