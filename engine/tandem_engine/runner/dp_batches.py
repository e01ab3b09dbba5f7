"""The part of each step that a dp rank computes.

Rank 0 hands all rows of a step to all ranks: they keep step, and where collectives reach across
dp ranks they know of each other's rows. Block ids count over all dp ranks, so the first block of a
row says where it is computed:

    dp rank = block // blocks of a dp rank        block of its cache = block % blocks of a dp rank

A dp rank without rows has an empty part, and takes part in the step nevertheless.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tandem_engine.api.step import BlockCopy, Step
from tandem_engine.device.attention import (
    Int32s,
    Ints,
    advance_attention,
)
from tandem_engine.device.host_memory import to_device
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DPPart:
    """The rows of a step that one dp rank computes."""

    batch: FlatBatch
    """With block ids of its own cache; without rows where it has none."""
    yields: tuple[Ints, ...]
    """By dp rank: indices of its yielding positions among those of all."""
    rows: Ints
    """Indices of its rows among those of all."""
    scored: tuple[Ints, ...] = ()
    """By dp rank: indices of its positions among those that the step scores; empty: it does not."""

    @property
    def is_empty(self) -> bool:
        """True if it has no rows."""
        return not len(self.rows)

    def gives(self, dp_rank: int) -> bool:
        """Return True if a dp rank has logits or scores in this step."""
        return bool(len(self.yields[dp_rank]) or (self.scored and len(self.scored[dp_rank])))


class DPBatches:
    """Takes the part of one dp rank out of each step.

    Args:
        dp: Number of dp ranks.
        dp_rank: The one whose parts these are.
        num_blocks: KV blocks of each dp rank.
        num_host_blocks: Host blocks of each dp rank.
    """

    def __init__(self, *, dp: int, dp_rank: int, num_blocks: int, num_host_blocks: int = 0) -> None:
        self._dp = dp
        self._dp_rank = dp_rank
        self._num_blocks = num_blocks
        self._num_host_blocks = num_host_blocks
        self._last: tuple[FlatBatch, DPPart] | None = None

    def copies(self, step: Step) -> Step:
        """Return a step of the copies that are the dp rank's, and nothing else."""
        blocks, host = self._num_blocks, self._num_host_blocks
        return Step(
            swapped_out=self._own_copies(step.swapped_out, blocks, host),
            swapped_in=self._own_copies(step.swapped_in, host, blocks),
            copied=self._own_copies(step.copied, blocks, blocks),
        )

    def part(self, batch: FlatBatch) -> DPPart:
        """Return the dp rank's part of a batch, whose rows stand in their order."""
        last = self._last
        if last is not None and _continues(batch, last[0]):
            part = self._advanced(batch, last[1])
        else:
            part = self._cut(batch)
        self._last = batch, part
        return part

    def _own_copies(self, copies: Iterable[BlockCopy], source: int, target: int) -> list[BlockCopy]:
        return [
            BlockCopy(copy.source % source, copy.target % target)
            for copy in copies
            if copy.source // source == self._dp_rank
        ]

    def _cut(self, batch: FlatBatch) -> DPPart:
        attention = batch.attention
        dp_rank_of = attention.blocks[attention.first_block[:-1]] // self._num_blocks
        rows = np.flatnonzero(dp_rank_of == self._dp_rank)
        dp_rank_of_token = np.repeat(dp_rank_of, np.diff(attention.row_starts))
        yields = self._shared_out(dp_rank_of_token[batch.yield_at.array])
        scoring = batch.scoring
        scored = () if scoring is None else self._shared_out(dp_rank_of_token[scoring.at.array])
        own = batch.select(rows, first_block=self._dp_rank * self._num_blocks).batch
        return DPPart(batch=own, yields=yields, rows=rows, scored=scored)

    def _shared_out(self, dp_rank_of: Int32s) -> tuple[Ints, ...]:
        """By dp rank: indices of what is its own."""
        return tuple(np.flatnonzero(dp_rank_of == dp_rank) for dp_rank in range(self._dp))

    def _advanced(self, batch: FlatBatch, last: DPPart) -> DPPart:
        """The part of a batch whose rows go on by one token each, which yields."""
        if last.is_empty:
            return last
        attention = batch.attention

        def blocks_of(rows: Ints, numbers: Ints) -> Int32s:
            first = attention.first_block[last.rows[rows]]
            return self._own_blocks(attention.blocks[first + numbers])

        own = FlatBatch(
            token_ids=batch.token_ids[to_device(last.rows, batch.token_ids.device)],
            attention=advance_attention(last.batch.attention, blocks_of),
            yield_at=last.batch.yield_at,
            yielding=(),
            drafts=NO_DRAFTS,
            num_top=batch.num_top,
        )
        return DPPart(batch=own, yields=last.yields, rows=last.rows)

    def _own_blocks(self, blocks: Int32s) -> Int32s:
        own: Int32s = blocks - np.int32(self._dp_rank * self._num_blocks)
        return own


def merge_logits(parts: Iterable[tuple[Ints, Tensor]], num_columns: int) -> Tensor:
    """Put the logits of the dp ranks into the order of the whole batch.

    Args:
        parts: Of each dp rank with yielding positions: their indices among those of all
            (`DPPart.yields`), and their logits, float32 [positions, columns].
        num_columns: Columns, for a step in which no position yields.
    """
    every = list(parts)
    if len(every) == 1:
        return every[0][1]
    device = every[0][1].device if every else None
    merged = torch.empty(sum(len(at) for at, _ in every), num_columns, device=device)
    for at, logits in every:
        merged[to_device(at, merged.device)] = logits
    return merged


def _continues(batch: FlatBatch, last: FlatBatch) -> bool:
    """True if a batch has the rows of the last one in the same blocks, each with its next token.

    `advance_attention` hands the starts of rows on as they are.
    """
    attention, before = batch.attention, last.attention
    return (
        attention.row_starts is before.row_starts
        and batch.yield_at is last.yield_at
        and np.array_equal(attention.context_lens, before.context_lens + 1)
    )
