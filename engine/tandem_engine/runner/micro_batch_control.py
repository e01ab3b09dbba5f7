"""Micro-batches of a group, on rank 0: the gate, the counts, the prices that all ranks cut by."""

import time
from typing import Final

from tandem_engine.api.micro_batch_stats import MicroBatchStats, Phase
from tandem_engine.microbatch.counts import MicroBatchCounts
from tandem_engine.microbatch.cut import Cut, RefusalReason
from tandem_engine.microbatch.gate import MicroBatchGate
from tandem_engine.microbatch.overlap import StepOverlap, StepShape
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows
from tandem_engine.model.decoder import Decoder
from tandem_engine.parallel.plan import RankPlan

EVERY_STEP: Final = CutPrices(
    base_s=1e-3,
    token_s=1e-5,
    pair_s=1e-8,
    context_s=1e-7,
    latency_s=0.0,
    byte_s=0.0,
    margin=-1e9,
    num_collectives=1,
    token_bytes=1,
    tile=2,
    prefills=True,
    decodes=True,
)
"""Prices by which every step is cut that can be, whether it pays or not: to measure what it takes,
and to compare what it says."""


class MicroBatchControl:
    """Learns from the steps of rank 0; one thread calls all but `stats`.

    Args:
        num_collectives: Of a step that is not cut.
        token_bytes: Bytes of a token in one of them.
        num_kv_blocks: KV blocks that micro-batches cost a rank.
    """

    def __init__(self, *, num_collectives: int, token_bytes: int, num_kv_blocks: int = 0) -> None:
        self._num_collectives = num_collectives
        self._token_bytes = token_bytes
        self._num_kv_blocks = num_kv_blocks
        self._gate = MicroBatchGate(num_collectives=num_collectives, token_bytes=token_bytes)
        self._counts = MicroBatchCounts()

    @classmethod
    def of(cls, decoder: Decoder, *, num_kv_blocks: int = 0) -> "MicroBatchControl":
        """Return the control of a group whose rank 0 has this part of the model."""
        packed_model = decoder.packed_model
        return cls(
            num_collectives=_num_collectives(decoder.plan),
            token_bytes=packed_model.hidden_size * packed_model.rope.element_size(),
            num_kv_blocks=num_kv_blocks,
        )

    def prices(self) -> CutPrices | None:
        """Return what the next step is cut by; the same object until it changes."""
        return self._gate.prices()

    def observe(
        self, rows: StepRows | None, outcome: Cut | RefusalReason, measured: StepOverlap
    ) -> None:
        """Count a step of rank 0, and learn from it where its rows are given."""
        is_cut = isinstance(outcome, Cut)
        if isinstance(outcome, Cut):
            self._counts.cut(measured, time.monotonic())
        else:
            self._counts.whole(outcome, measured)
        if rows is None:
            return
        shape = StepShape.of(
            rows,
            num_passes=1 + is_cut,
            num_collectives=self._num_collectives,
            token_bytes=self._token_bytes,
        )
        phase: Phase = "prefill" if rows.has_prefill else "decode"
        self._gate.observe(phase, shape, measured, is_cut=is_cut)

    def stats(self) -> MicroBatchStats:
        """Return what micro-batches bring and cost; from any thread."""
        return self._counts.stats(
            time.monotonic(), gates=self._gate.states(), num_kv_blocks=self._num_kv_blocks
        )


def _num_collectives(plan: RankPlan) -> int:
    """Return the sums of all tokens: two a layer, and one of the embedding.

    Behind the attention of the last layer only rows that yield go on: their sums are small.
    """
    return 2 * len(plan.layers) + plan.is_first_stage - 2 * plan.is_last_stage
