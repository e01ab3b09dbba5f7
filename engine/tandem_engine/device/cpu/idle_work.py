"""Background work that must not delay steps: collapsing pages, beside an engine that serves.

During a step it would take a core from it, and all threads of a step wait for the slowest. So it is
done in small pieces: one after another while no step runs, and after each step for a small share of
its time, so that it ends even if steps never do.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SHARE: Final = 0.02
"""Share of the time of consecutive steps that pieces may take."""
_QUIET_S: Final = 0.02
"""Seconds without a step after which the device counts as idle."""


class IdleWork:
    """Does pieces of work between steps, and while there are none.

    Args:
        piece: Does one piece, about a millisecond of work; false: nothing is left.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self, piece: Callable[[], bool], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._piece = piece
        self._clock = clock
        # Held by the thread that computes a step or does a piece: never both.
        self._busy = threading.Lock()
        self._credit_s = 0.0
        self._quiet_since = clock()
        self._is_over = True

    @property
    def is_over(self) -> bool:
        """True when no piece is left, or none was begun."""
        return self._is_over

    def begin(self) -> None:
        """Do pieces from now on, in a thread that ends with the last of them."""
        self._is_over = False
        self._quiet_since = self._clock()
        threading.Thread(target=self._run, name="tandem-idle-work", daemon=True).start()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Hold pieces off while a step is computed."""
        if self._is_over:
            yield
            return
        with self._busy:
            began = self._clock()
            try:
                yield
            finally:
                self._credit_s += SHARE * (self._clock() - began)
                self._spend()
                self._quiet_since = self._clock()

    def run_if_idle(self) -> bool:
        """Do a piece if there was no step for a while; return True if one was done."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._is_over or self._clock() - self._quiet_since < _QUIET_S:
                return False
            self._do_piece()
            return True
        finally:
            self._busy.release()

    def _spend(self) -> None:
        """Do pieces for the share of the steps so far; excess time is owed."""
        while self._credit_s > 0 and not self._is_over:
            began = self._clock()
            self._do_piece()
            self._credit_s -= self._clock() - began

    def _do_piece(self) -> None:
        self._is_over = not self._piece()

    def _run(self) -> None:
        while not self._is_over:
            if not self.run_if_idle():
                time.sleep(_QUIET_S)
