"""The logits of a step that has begun: there, queued, or on their way from other ranks."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

import torch
from torch import Tensor

from tandem_engine.device.streams import Job, Stream
from tandem_engine.runner.batch import FlatBatch


class PendingLogits(Protocol):
    """Logits of a step that may still be computed."""

    def then(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when `result` has nothing to wait for, perhaps at once, on any thread."""

    def result(self) -> Tensor:
        """Return them when they are there, or in the current stream of their device.

        By the thread that calls the executor.

        Raises:
            Exception: They cannot come, as far as it is known yet: see `Executor.reading`.
        """


class Computed:
    """Logits that are there; implements `PendingLogits`."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def then(self, go_on: Callable[[], None]) -> None:
        """Call at once."""
        go_on()

    def result(self) -> Tensor:
        """Return them."""
        return self._logits


NO_LOGITS: Final = Computed(torch.empty(0))
"""Result of a step on ranks other than the first of a dp rank."""


class Queued:
    """Logits of work that is in the current stream; implements `PendingLogits`."""

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

    def do(self, work: Callable[[], Tensor], *, after: Job[None]) -> "Awaited":
        """Begin `work` when all before it is done, and `after`, of another stream."""
        return Awaited(self._thread.submit(self._carry_out, work, after))

    def close(self) -> None:
        """End the thread when all work is done."""
        self._thread.shutdown()

    def _carry_out(self, work: Callable[[], Tensor], after: Job[None]) -> Tensor:
        # The mode is one of a thread.
        with torch.inference_mode():
            job = self._stream.run(work, after=[after])
            job.wait()
            return job.result()


class Awaited:
    """Logits that another rank computes; implements `PendingLogits`."""

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


def results_of(batch: FlatBatch, logits: Tensor) -> list[Tensor]:
    """Results of a step: logits and scores, without those that it has none of."""
    scores = [] if batch.scoring is None else [batch.scoring.scores]
    return [*([logits] if len(batch.yield_at) else []), *scores]
