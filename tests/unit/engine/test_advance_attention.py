"""A step that continues another one is laid out as if it were the first."""

import numpy as np
import pytest

from tandem_engine.device.attention import (
    AttentionMetadata,
    Int32s,
    Ints,
    advance_attention,
    lay_out_attention,
)

BLOCK = 4
ARRAYS = (
    "row_starts",
    "context_lens",
    "first_block",
    "blocks",
    "token_positions",
    "token_blocks",
    "token_offsets",
)


@pytest.mark.parametrize("num_begun", [0, 1, 8, 9, 30])
def test_rows_that_begin_a_block_get_it_however_many_there_are(num_begun: int) -> None:
    num_rows = 30
    contexts = np.full(num_rows, 2 * BLOCK - 1, dtype=np.int64)
    # Full blocks, in rows that are spread.
    contexts[np.arange(num_begun) * 7 % num_rows] = 2 * BLOCK
    tables = np.arange(num_rows * 3, dtype=np.int32).reshape(num_rows, 3)

    def laid_out(lengths: Ints) -> AttentionMetadata:
        counts = -(-lengths // BLOCK)
        blocks = np.concatenate([tables[row, :count] for row, count in enumerate(counts)])
        ones = np.ones(num_rows, dtype=np.int64)
        return lay_out_attention(ones, lengths, blocks, block_size=BLOCK, device="cpu")

    def blocks_of(rows: Ints, numbers: Ints) -> Int32s:
        found: Int32s = tables[rows, numbers]
        return found

    before = laid_out(contexts)
    advanced, fresh = advance_attention(before, blocks_of), laid_out(contexts + 1)

    for name in ARRAYS:
        assert np.array_equal(getattr(advanced, name), getattr(fresh, name)), name
