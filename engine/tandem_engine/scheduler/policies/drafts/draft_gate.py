"""A switch that turns drafts off where steps with them took longer than they brought."""

from collections import deque
from math import fsum, sqrt
from typing import Final

WINDOW: Final = 32
"""Steps with drafts that are judged by, the last ones."""
EARLY: Final = (8, 16)
"""Counts of them at which they are judged before the window is full."""
FIRST_TRIAL: Final = 64
"""Steps after which drafts are tried again where they did not pay; then twice as many."""
LAST_TRIAL: Final = 2**14
_LEAST_GAIN: Final = 0.02
"""Share of their time that drafts must save: without it they bring nothing but their risk."""
_ERROR: Final = 0.02
"""Error of a mean over the window, as a share."""


class DraftGate:
    """Open while drafts pay, as measured; tried again after some steps."""

    def __init__(self) -> None:
        self.is_open = True
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._num_shut = 0
        self._trial_after = FIRST_TRIAL

    def count_step(self) -> None:
        """Take note of a step that is about to be scheduled: a shut gate opens after some."""
        if self.is_open:
            return
        self._num_shut += 1
        if self._num_shut >= self._trial_after:
            self.is_open, self._num_shut = True, 0
            self._trial_after = min(2 * self._trial_after, LAST_TRIAL)

    def judge(self, seconds: float, worth_s: float) -> None:
        """Shut where steps took longer than what they brought would have taken without drafts.

        Args:
            seconds: The step, and the drafting before it.
            worth_s: Time that its tokens would have taken without drafts.
        """
        window = self._window
        window.append((seconds, worth_s))
        count = len(window)
        if count < WINDOW and count not in EARLY:
            return
        # The error of a mean over few steps is larger than that of one over many.
        doubt = _ERROR * (sqrt(WINDOW / count) - 1.0)
        took = fsum(seconds for seconds, _ in window)
        worth = fsum(worth for _, worth in window)
        if took * (1.0 + _LEAST_GAIN) > worth * (1.0 + doubt):
            window.clear()
            self.is_open = False
        elif count == WINDOW:
            self._trial_after = FIRST_TRIAL
