"""A step that continues the previous one, laid out without reading its rows.

Nearly every step of a busy engine is one: the same rows, in the same order, each with the token
that it has just got. Then all that changes are positions, by one, tokens, which the device has, and
the tables of the few rows that begin a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem_engine.api.step import Step
from tandem_engine.device.attention import AttentionMetadata, Ints, advance_attention
from tandem_engine.runner.batch import ALL_FED, FlatBatch


@dataclass(slots=True)
class DecodeBatches:
    """Keeps the last batch if the next one may continue it."""

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
        attention = _advanced(batch.attention, step)
        if attention is None:
            return None
        return replace(
            batch,
            attention=attention,
            fed=ALL_FED,
            sampled=None,
            block_tables=step.block_tables,
        )


def _advanced(before: AttentionMetadata, step: Step) -> AttentionMetadata | None:
    """The step's metadata; None: its rows go on elsewhere, or lack a block."""
    if not np.array_equal(before.context_lens, step.starts):
        return None
    tables = step.block_tables

    def blocks_of(rows: Ints, numbers: Ints) -> list[int]:
        return [tables[row][at] for row, at in zip(rows.tolist(), numbers.tolist(), strict=True)]

    try:
        return advance_attention(before, blocks_of)
    except IndexError:
        return None


def _has_same_rows(step: Step, last: Step) -> bool:
    """True if the same rows have one token each, in the same blocks and perhaps further ones."""
    return (
        not step.drafts
        and not step.beam_moves
        and len(step.sequence_ids) == step.num_decodes
        and step.sequence_ids == last.sequence_ids
        and step.num_tokens == last.num_tokens
        and _go_on(step.block_tables, last.block_tables)
    )


def _go_on(tables: Sequence[Sequence[int]], before: Sequence[Sequence[int]]) -> bool:
    """True if each table is what it was, or begins with it."""
    # Tables are compared by identity first, and only then by their contents.
    return tables == before or all(
        table is old or table[: len(old)] == old for table, old in zip(tables, before, strict=True)
    )
