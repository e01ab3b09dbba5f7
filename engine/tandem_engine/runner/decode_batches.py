"""A step that continues the previous one, laid out without reading its rows.

Nearly every step of a busy engine is one: the same rows, in the same order, each with the token
that it has just got. Then all that changes are positions, by one, and tokens, which the device has.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem_engine.api.step import Step
from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.runner.batch import Feed, FlatBatch

_ALL_FED = Feed(None, None)


@dataclass(slots=True)
class DecodeBatches:
    """Keeps the last batch if the next one may continue it."""

    block_size: int
    """Tokens of a KV block."""
    _step: Step | None = None
    _batch: FlatBatch | None = None

    def forget(self) -> None:
        """Drop the kept batch: a row that it knows has changed."""
        self._step = self._batch = None

    def remember(self, step: Step, batch: FlatBatch) -> None:
        """Keep a batch in which every row had one token and yields one."""
        num_rows = len(step.sequence_ids)
        if batch.is_simple and step.total_tokens == num_rows == len(batch.yielding):
            self._step, self._batch = step, batch
        else:
            self.forget()

    def advance(self, step: Step) -> FlatBatch | None:
        """Return the batch of `step` if it continues the last one; its tokens are all fed."""
        last, batch = self._step, self._batch
        if last is None or batch is None or not _has_same_rows(step, last):
            return None
        attention = self._advanced(batch.attention, step.starts)
        if attention is None:
            return None
        return replace(batch, attention=attention, fed=_ALL_FED)

    def _advanced(
        self, before: AttentionMetadata, starts: Sequence[int]
    ) -> AttentionMetadata | None:
        positions = before.token_positions + 1
        offsets = before.token_offsets + 1
        # A row at the end of a block goes on in the next one of its table.
        if offsets.max() >= self.block_size or not np.array_equal(positions, starts):
            return None
        return AttentionMetadata(
            block_size=before.block_size,
            num_decode_rows=before.num_decode_rows,
            device=before.device,
            row_starts=before.row_starts,
            context_lens=before.context_lens + np.int32(1),
            first_block=before.first_block,
            blocks=before.blocks,
            token_positions=positions,
            token_blocks=before.token_blocks,
            token_offsets=offsets,
        )


def _has_same_rows(step: Step, last: Step) -> bool:
    """True if the same rows have one token each, in the same blocks."""
    return (
        not step.num_drafts
        and not step.beam_moves
        and len(step.sequence_ids) == step.num_decodes
        and step.sequence_ids == last.sequence_ids
        # Tables are compared by identity first, and only then by their contents.
        and step.block_tables == last.block_tables
        and step.num_tokens == last.num_tokens
    )
