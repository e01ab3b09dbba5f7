"""Logits that are not there yet when a step has begun: queued, or on their way from other ranks."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from tandem_engine.device.streams import Job, Stream


class Queued:
    """Logits of work that is in the current stream; implements `executor.PendingLogits`."""

    def __init__(self, job: Job[Tensor]) -> None:
        self._job = job

    def then(self, go_on: Callable[[], None]) -> None:
        """Call at once: what goes on with them is queued behind them."""
        go_on()

    def result(self) -> Tensor:
        """Return them; a device may still be computing them."""
        return self._job.result()


class LaterWork:
    """Work that waits for other ranks, on a stream and a thread of its own.

    One piece is done behind another, so that each finds what those before it have given.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=stream.name)

    def do(self, work: Callable[[], Tensor]) -> "Awaited":
        """Begin `work` when all before it is done."""
        return Awaited(self._thread.submit(self._carry_out, work))

    def close(self) -> None:
        """End the thread when all work is done."""
        self._thread.shutdown()

    def _carry_out(self, work: Callable[[], Tensor]) -> Tensor:
        # The mode is one of a thread.
        with torch.inference_mode():
            job = self._stream.run(work)
            job.wait()
            return job.result()


class Awaited:
    """Logits that another rank computes; implements `executor.PendingLogits`."""

    def __init__(self, future: Future[Tensor]) -> None:
        self._future = future

    def then(self, go_on: Callable[[], None]) -> None:
        """Call on the thread that waits for them, or at once if they are there."""
        self._future.add_done_callback(lambda _: go_on())

    def result(self) -> Tensor:
        """Wait for them.

        Raises:
            CollectiveError: They will never come.
        """
        return self._future.result()
