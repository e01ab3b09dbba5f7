"""The part of a step that a device does: copies of KV blocks, and the forward pass.

`ModelRunner` keeps the sequences, lays out each step and samples. An executor needs none of that:
the flat batch says all. So a rank beside rank 0 is an executor without a runner, and a group of
ranks is one executor to the runner of rank 0.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.api.timeline import Timeline
from tandem_engine.device.blocks import copy_blocks, swap_in, swap_out
from tandem_engine.device.stream_layouts import current_stream
from tandem_engine.device.streams import Stream
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.recording import Recorder
from tandem_engine.runner.step_trace import StepTrace
from tandem_engine.sampling.token_scores import TokenScorer


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

    def forward(self, batch: FlatBatch) -> Tensor:
        """The result of `begin`."""

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


class RankExecutor(Protocol):
    """Computes one rank's part of the steps of a group; all ranks are given the same ones."""

    @property
    def recorder(self) -> Recorder:
        """Records the rank's steps; for the thread that computes them."""

    def copy(self, step: Step) -> None:
        """Make those copies of `step` that are the rank's."""

    def set_prices(self, prices: CutPrices | None) -> None:
        """Cut steps by these prices from now on; None: cut none. All ranks are given the same."""

    def compute(self, batch: FlatBatch) -> PendingLogits:
        """Compute the rank's part of a step, and exchange what goes in and out.

        To be called under torch.inference_mode. It may be called for a further step before the
        logits of this one are there.

        Returns:
            On rank 0 the logits of `Executor.begin`; without a meaning on others.

        Raises:
            CollectiveError: Another rank is dead, silent, or computes something else.
        """

    def close(self) -> None:
        """End its threads; what they send and receive must come to an end by itself."""


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


class LocalExecutor:
    """Implements `Executor` on the device of this process.

    Args:
        decoder: The model.
        kv_cache: Its blocks on the device.
        host_cache: Blocks for swapped-out sequences, from `allocate_host_cache`; None: no step
            swaps.
    """

    def __init__(
        self, decoder: Decoder, kv_cache: KVCache, *, host_cache: Tensor | None = None
    ) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._host_cache = host_cache
        self._recorder = Recorder(decoder.plan.rank)
        self._stream: Stream | None = None
        self._scorer = TokenScorer(decoder.row_sampler())
        # Held by a step, so that a recording begins and ends between two.
        self._computing = threading.Lock()

    @property
    def num_stages(self) -> int:
        """One: a step is over when it is begun."""
        return 1

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has an embedding for."""
        return self._decoder.config.vocab_size

    @property
    def heeds_num_top(self) -> bool:
        """False: all logits are here already."""
        return False

    def remove(self, sequence_ids: Sequence[str]) -> None:
        """Do nothing: a batch brings along all that is needed of its sequences."""

    def copy(self, step: Step) -> None:
        """Make the copies of `step`: out to the host, in from it, and on the device.

        Raises:
            ValueError: It swaps and there are no host blocks, which is a bug.
        """
        make_copies(step, self._kv_cache, self._host_cache)

    def begin(self, batch: FlatBatch) -> PendingLogits:
        """Compute a step."""
        return Computed(self.forward(batch))

    def forward(self, batch: FlatBatch) -> Tensor:
        """Logits of the yielding positions: float32 [yielding positions, vocabulary]."""
        with self._computing:
            if not self._recorder.is_on or self._stream is None:
                return self._forward(batch)
            job = self._stream.run(lambda: self._forward(batch))
            trace = StepTrace()
            trace.add(job, self._stream)
            trace.wait()
            self._recorder.add(batch, None, trace)
            return job.result()

    def reading(self) -> AbstractContextManager[None]:
        """See `Executor`: what one rank cannot compute, it raises itself."""
        return nullcontext()

    def begin_recording(self, num_steps: int, is_full: Callable[[], None]) -> None:
        """See `RecordingExecutor`."""
        with self._computing:
            # Its clock meets that of the host once a recording.
            self._stream = current_stream(self._decoder.device)
            self._recorder.begin(num_steps, is_full)

    def end_recording(self) -> Timeline:
        """See `RecordingExecutor`."""
        with self._computing:
            return Timeline(steps=self._recorder.end())

    def _forward(self, batch: FlatBatch) -> Tensor:
        if batch.scoring is not None:
            batch.scoring.scorer = self._scorer
        return self._decoder.forward(
            batch.token_ids,
            self._kv_cache,
            batch.attention,
            logits_rows=batch.logits_at,
            scoring=batch.scoring,
        )


def make_copies(step: Step, kv_cache: KVCache, host_cache: Tensor | None) -> None:
    """Make the copies of `step`: out to the host, in from it, and on the device.

    Raises:
        ValueError: It swaps and there are no host blocks, which is a bug.
    """
    blocks = kv_cache.blocks
    if step.swapped_out:
        swap_out(blocks, _present(host_cache), step.swapped_out)
    if step.swapped_in:
        swap_in(blocks, _present(host_cache), step.swapped_in)
    if step.copied:
        copy_blocks(blocks, step.copied)


def _present(host_cache: Tensor | None) -> Tensor:
    if host_cache is None:
        raise ValueError("the step swaps KV blocks, but there are no host blocks; a bug")
    return host_cache
