"""The two halves of a flat batch that is cut, and the logits of both in the order of the whole."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from tandem_engine.device.host_memory import to_device
from tandem_engine.microbatch.cut import Cut, Half
from tandem_engine.microbatch.rows import StepRows, parted_rows
from tandem_engine.runner.batch import FlatBatch


def rows_of(batch: FlatBatch) -> StepRows:
    """Return what a cut depends on; on every rank of a group the same."""
    attention = batch.attention
    query_lens = np.diff(attention.row_starts).astype(np.int64)
    return StepRows(
        query_lens=query_lens,
        context_lens=attention.context_lens.astype(np.int64),
        first_block=attention.first_block.astype(np.int64),
        blocks=attention.blocks,
        block_size=attention.block_size,
        num_decode_rows=attention.num_decode_rows,
        can_be_parted=parted_rows(query_lens, batch.yield_at.array),
    )


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Two flat batches that have the tokens of a whole one, and where their logits belong.

    They name no rows: those of the whole one are sampled.
    """

    first: FlatBatch
    second: FlatBatch
    first_tokens: Tensor
    """[tokens of the first half] int64: their places in the whole batch."""
    second_tokens: Tensor
    _first_at: Tensor
    """[yielding positions of the first half] int64: their places among those of the whole."""
    _second_at: Tensor

    @classmethod
    def of(cls, batch: FlatBatch, cut: Cut) -> Self:
        """Return the halves of `batch`, which is laid out on this rank, by a cut of it."""
        first, first_tokens, first_at = _half_of(batch, cut.first)
        second, second_tokens, second_at = _half_of(batch, cut.second)
        return cls(first, second, first_tokens, second_tokens, first_at, second_at)

    def merge(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the logits of both halves in the order of the whole batch's yielding positions.

        Args:
            first: [yielding positions of the first half, columns of the logits].
            second: Those of the second one.
        """
        return _merged(first, self._first_at, second, self._second_at)

    def merge_hidden(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the hidden states of both halves in the order of the whole batch's tokens.

        Args:
            first: [tokens of the first half, hidden size].
            second: Those of the second one.
        """
        return _merged(first, self.first_tokens, second, self.second_tokens)


def _merged(first: Tensor, first_at: Tensor, second: Tensor, second_at: Tensor) -> Tensor:
    merged = first.new_empty(len(first) + len(second), first.shape[1])
    merged[first_at] = first
    merged[second_at] = second
    return merged


def _half_of(batch: FlatBatch, half: Half) -> tuple[FlatBatch, Tensor, Tensor]:
    """Return one half, and the places of its tokens and of its logits in the whole batch."""
    selected, tokens, places = batch.select(half.rows, firsts=half.firsts, counts=half.counts)
    device = batch.token_ids.device
    return selected, to_device(tokens, device), to_device(places, device)
