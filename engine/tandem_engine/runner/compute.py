"""The thread that computes steps in the order in which they are handed in."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

Work = Callable[[], None]
T = TypeVar("T")


class ComputeThread:
    """Runs work items one after another; the first one starts it.

    A native kernel holds no lock of Python's while it computes, so its caller can
    prepare the next meanwhile.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """True while there is a thread."""
        return self._thread is not None

    def put(self, work: Work) -> None:
        """Queue work behind all that was put before; it must not raise."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="tandem-compute", daemon=True)
            # If the start fails there is no thread, and the next work tries again.
            thread.start()
            self._thread = thread
        self._queue.put(work)

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, on the thread if it runs, else on the caller's own."""
        if self._thread is None:
            return work()
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001  # it is the caller's
                done.set_exception(error)

        self.put(run)
        return done.result()

    def close(self) -> None:
        """End the thread when all work is done; it starts again with the next."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    @torch.inference_mode()
    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            # Release what a finished step holds before the next one comes.
            del work
