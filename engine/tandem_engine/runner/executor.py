"""The part of a step that a device does: copies of KV blocks, and the forward pass.

`ModelRunner` keeps the sequences, lays out each step and samples. An executor needs none of that:
the flat batch says all. It has a worker for each rank, one here or a group of them, and a rank
beside rank 0 is a worker without a runner.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.api.timeline import Timeline
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.pending_logits import PendingLogits
from tandem_engine.runner.worker import Worker


class Executor(Protocol):
    """Computes steps, in the order in which it is given them. One thread calls it at a time."""

    @property
    def num_stages(self) -> int:
        """Pipeline stages: so many steps are computed at the same time."""

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has an embedding for."""

    @property
    def heeds_num_top(self) -> bool:
        """True if it gives `FlatBatch.num_top` logits of each share of the vocabulary, not all."""

    def remove(self, sequence_ids: Sequence[str]) -> None:
        """Forget sequences: no later step has them. Unknown ids are ignored."""

    def copy(self, step: Step) -> None:
        """Make the copies of blocks of `step`; see `tandem_engine.api.step.Step`."""

    def begin(self, batch: FlatBatch) -> PendingLogits:
        """Begin to compute a step; the next may begin before the logits of this one are there.

        To be called under torch.inference_mode; the batch's tokens are fed in.

        Returns:
            Logits of the yielding positions: float32 [yielding positions, vocabulary], or, where
            `heeds_num_top`, the largest as `TopLogits` has them. Once they are there,
            `batch.scoring` has its scores.
        """

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which the host reads what was computed; from any thread.

        Raises:
            ReplicaLost: At its end: what was read cannot be relied on.
        """


class RecordingExecutor(Protocol):
    """An executor whose steps can be recorded; from any thread, one recording at a time."""

    def begin_recording(self, num_steps: int, is_full: Callable[[], None]) -> None:
        """Record the next steps on all ranks, behind the one that is begun.

        Args:
            num_steps: How many.
            is_full: Called by the thread that computes when there are so many; must not raise.

        Raises:
            ReplicaLost: No more steps can be computed.
        """

    def end_recording(self) -> Timeline:
        """Record no further step; return those that were recorded.

        A rank that does not answer is left out.

        Raises:
            ReplicaLost: No more steps can be computed.
        """


class LocalExecutor:
    """Implements `Executor` by a worker that is alone, in this process.

    Args:
        decoder: The model.
        kv_cache: Its blocks on the device.
        host_cache: Blocks for swapped-out sequences, from `allocate_host_cache`; None: no step
            swaps.
    """

    def __init__(
        self, decoder: Decoder, kv_cache: KVCache, *, host_cache: Tensor | None = None
    ) -> None:
        self._worker = Worker(decoder, kv_cache, host_cache=host_cache)
        # Held by a step, so that a recording begins and ends between two.
        self._computing = threading.Lock()

    @property
    def num_stages(self) -> int:
        """One: a step is over when it is begun."""
        return 1

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has an embedding for."""
        return self._worker.vocab_size

    @property
    def heeds_num_top(self) -> bool:
        """False: all logits are here already."""
        return False

    def remove(self, sequence_ids: Sequence[str]) -> None:
        """Do nothing: a batch brings along all that is needed of its sequences."""

    def copy(self, step: Step) -> None:
        """Make the copies of `step`; see `Worker.copy`."""
        self._worker.copy(step)

    def begin(self, batch: FlatBatch) -> PendingLogits:
        """Compute a step."""
        with self._computing:
            return self._worker.compute(batch)

    def reading(self) -> AbstractContextManager[None]:
        """See `Executor`: what one rank cannot compute, it raises itself."""
        return nullcontext()

    def begin_recording(self, num_steps: int, is_full: Callable[[], None]) -> None:
        """See `RecordingExecutor`."""
        with self._computing:
            self._worker.recorder.begin(num_steps, is_full)

    def end_recording(self) -> Timeline:
        """See `RecordingExecutor`."""
        with self._computing:
            return Timeline(steps=self._worker.recorder.end())
