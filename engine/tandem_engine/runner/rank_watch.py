"""A thread that waits for the end of any of a replica's other ranks, or of what they share."""

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Final

POLL_S: Final = 1.0


class RankWatch:
    """Calls back once when a process ends or all have failed, unless it is closed before.

    Args:
        sentinels: Descriptors that are readable when a process has ended; open until `close`.
        has_failed: True when ranks exchange tensors no more. The step that finds it may never end,
            as where a card hangs; asked each second.
        lost: Called by the thread.
    """

    def __init__(
        self, sentinels: Sequence[int], has_failed: Callable[[], bool], lost: Callable[[], None]
    ) -> None:
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._sentinels = sentinels
        self._has_failed = has_failed
        self._lost = lost
        self._thread = threading.Thread(target=self._run, name="tandem-ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. May be called again, but not by the thread itself."""
        if self._stop < 0:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._stop = -1

    def _run(self) -> None:
        ends = [*self._sentinels, self._stop]
        while not (ended := wait(ends, POLL_S)) and not self._has_failed():
            pass
        if self._stop not in ended:
            self._lost()
