"""One rank's part of each step, where several ranks compute one model."""

import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.model.stages import drive, own_rows
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.executor import make_copies
from tandem_engine.runner.stage_collectives import PP, CommunicatorCollectives


class StageExecutor:
    """Computes the stages of one rank; all ranks are given the same steps in the same order.

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

    def copy(self, step: Step) -> None:
        """Make the copies of `step` in the rank's own blocks."""
        make_copies(step, self._kv_cache, self._host_cache)

    def compute(self, batch: FlatBatch) -> Tensor | None:
        """Compute the rank's stages of a step, and exchange what goes in and out.

        To be called under torch.inference_mode.

        Returns:
            On rank 0 the logits, float32 [yielding positions, vocabulary]; None on others.

        Raises:
            CollectiveError: Another rank is dead, silent, or computes something else.
        """
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
            return result
        return self._passed_on(result, len(batch.yield_at))

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

    def _passed_on(self, result: Tensor | None, num_logits: int) -> Tensor | None:
        """Send hidden states to the next stage, or logits to rank 0; return them there."""
        plan = self._plan
        if not plan.is_last_stage:
            assert result is not None, "inner stages give hidden states; this is a bug"  # noqa: S101
            self._communicator.send(result, plan.pp_rank + 1, PP).wait()
        elif result is not None and num_logits:
            self._communicator.send(result, 0, PP).wait()
        if plan.rank:
            return None
        logits = torch.empty(num_logits, self._decoder.config.vocab_size)
        if num_logits:
            self._communicator.receive(logits, plan.shape.pp - 1, PP).wait()
        return logits
