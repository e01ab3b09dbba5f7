"""The two halves of a flat batch that is cut, and the logits of both in the order of the whole."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata, Int32s, Ints, lay_out_attention
from tandem_engine.device.host_memory import HostInts, to_device
from tandem_engine.microbatch.cut import Cut, Half
from tandem_engine.microbatch.rows import StepRows, parted_rows
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch


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
    attention = batch.attention
    device, yield_at = batch.token_ids.device, batch.yield_at.array
    tokens = _ranges(attention.row_starts[half.rows] + half.firsts, half.counts)
    # Ascending, as rows and the tokens in them are.
    places = np.flatnonzero(np.isin(yield_at, tokens, assume_unique=True))
    tokens_at = to_device(tokens, device)
    batch_of_half = FlatBatch(
        token_ids=batch.token_ids[tokens_at],
        attention=_attention_of(attention, half),
        yield_at=HostInts(np.searchsorted(tokens, yield_at[places]), device),
        yielding=(),
        drafts=NO_DRAFTS,
        num_top=batch.num_top,
    )
    return batch_of_half, tokens_at, to_device(places, device)


def _attention_of(attention: AttentionMetadata, half: Half) -> AttentionMetadata:
    """Lay a half out: a chunk that begins in the other half finds its tokens in the cache."""
    rows = half.rows
    begins = attention.context_lens[rows] - np.diff(attention.row_starts)[rows]
    contexts = (begins + half.firsts + half.counts).astype(np.int64)
    num_blocks = -(-contexts // attention.block_size)
    return lay_out_attention(
        half.counts,
        contexts,
        attention.blocks[_ranges(attention.first_block[rows], num_blocks)],
        block_size=attention.block_size,
        device=attention.device,
    )


def _ranges(starts: Ints | Int32s, counts: Ints) -> Ints:
    """Return the numbers from each start on, as many as its count, one range behind the other."""
    ends = np.cumsum(counts)
    rows: Ints = np.repeat(starts - ends + counts, counts) + np.arange(int(counts.sum()))
    return rows
