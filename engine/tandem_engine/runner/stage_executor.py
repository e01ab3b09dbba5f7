"""One rank's part of each step, where several ranks compute one model."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.model.stages import drive, own_rows
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.executor import Computed, PendingLogits, make_copies
from tandem_engine.runner.stage_collectives import PP, CommunicatorCollectives

NO_LOGITS: Final = Computed(torch.empty(0))
"""Result of a step on ranks other than the first of a dp rank."""


class StageExecutor:
    """Computes the stages of one rank; implements `executor.RankExecutor`.

    Between pipeline stages, what a rank sends goes out on a thread of its own, and the first stage
    receives logits on another one: no rank that computes ever waits for one behind it, so that
    ranks with large tensors for each other cannot wait for each other for ever.

    Args:
        decoder: The rank's part of the model.
        kv_cache: Its layers' and heads' blocks on the device.
        communicator: Of the rank, in the world of `stage_collectives.world_shape`.
        host_cache: Blocks for swapped-out sequences; None: no step swaps.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: KVCache,
        communicator: Communicator,
        *,
        host_cache: Tensor | None = None,
    ) -> None:
        self._decoder = decoder
        self._plan = decoder.plan
        self._kv_cache = kv_cache
        self._host_cache = host_cache
        self._communicator = communicator
        self._collectives = CommunicatorCollectives(communicator, decoder.plan)
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._receiver = ThreadPoolExecutor(1, thread_name_prefix="receive")
        # Each keeps its tensor until the next rank has read it.
        self._sent: deque[Future[None]] = deque()

    def copy(self, step: Step) -> None:
        """Make the copies of `step` in the rank's own blocks."""
        make_copies(step, self._kv_cache, self._host_cache)

    def compute(self, batch: FlatBatch) -> PendingLogits:
        """See `RankExecutor`; the first rank of each dp rank has the logits."""
        plan = self._plan
        # A step with a decode has too few rows for sp to be of use.
        sequence_parallel = plan.shape.sp and not batch.attention.num_decode_rows
        stages = self._decoder.stages(
            batch.token_ids,
            self._kv_cache,
            batch.attention,
            logits_rows=batch.yield_at,
            hidden=self._hidden(len(batch.token_ids), sequence_parallel=sequence_parallel),
            sequence_parallel=sequence_parallel,
        )
        result = drive(stages, self._collectives)
        if plan.shape.pp == 1:
            return NO_LOGITS if result is None else Computed(result)
        return self._passed_on(result, len(batch.yield_at))

    def close(self) -> None:
        """End the threads; what they send and receive must come to an end by itself."""
        self._sender.shutdown()
        self._receiver.shutdown()

    def _hidden(self, num_tokens: int, *, sequence_parallel: bool) -> Tensor | None:
        """What the stage before gives; None: there is none."""
        plan, packed_model = self._plan, self._decoder.packed_model
        if plan.is_first_stage:
            return None
        num_rows = num_tokens
        if sequence_parallel:
            own = own_rows(num_tokens, plan)
            num_rows = own.stop - own.start
        # The table of angles is of the type that is computed in.
        hidden = packed_model.rope.new_empty(num_rows, packed_model.hidden_size)
        self._communicator.receive(hidden, plan.pp_rank - 1, PP).wait()
        return hidden

    def _passed_on(self, result: Tensor | None, num_logits: int) -> PendingLogits:
        """Send hidden states to the next stage, or logits to the first; await them there."""
        plan = self._plan
        if not plan.is_last_stage:
            assert result is not None, "inner stages give hidden states; this is a bug"  # noqa: S101
            self._send(result, plan.pp_rank + 1)
        elif result is not None and num_logits:
            self._send(result, 0)
        if plan.pp_rank or plan.tp_rank:
            return NO_LOGITS
        logits = torch.empty(num_logits, self._decoder.config.vocab_size)
        if not num_logits:
            return Computed(logits)
        return Awaited(self._receiver.submit(self._receive, logits))

    def _send(self, tensor: Tensor, stage: int) -> None:
        """Send without waiting; but a few tensors at most are on their way."""
        while len(self._sent) >= self._plan.shape.pp:
            self._sent.popleft().result()
        self._sent.append(
            self._sender.submit(lambda: self._communicator.send(tensor, stage, PP).wait())
        )

    def _receive(self, logits: Tensor) -> Tensor:
        self._communicator.receive(logits, self._plan.shape.pp - 1, PP).wait()
        return logits


class Awaited:
    """Logits that another rank computes; implements `PendingLogits`."""

    def __init__(self, future: Future[Tensor]) -> None:
        self._future = future

    def then(self, go_on: Callable[[], None]) -> None:
        """Call on the thread that receives them, or at once if they are there."""
        self._future.add_done_callback(lambda _: go_on())

    def result(self) -> Tensor:
        """Wait for them.

        Raises:
            CollectiveError: They will never come.
        """
        return self._future.result()
