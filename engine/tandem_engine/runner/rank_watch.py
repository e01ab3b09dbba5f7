"""A thread that waits for the end of any of a replica's other ranks."""

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait


class RankWatch:
    """Calls back once when a process ends, unless it is closed before.

    Args:
        sentinels: Descriptors that are readable when a process has ended; open until `close`.
        lost: Called by the thread.
    """

    def __init__(self, sentinels: Sequence[int], lost: Callable[[], None]) -> None:
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._sentinels = sentinels
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
        if self._stop not in wait([*self._sentinels, self._stop]):
            self._lost()
