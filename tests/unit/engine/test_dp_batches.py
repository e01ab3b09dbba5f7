"""The parts of dp ranks put together are the batch: rows, blocks, yields and copies."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.step import BlockCopy, Step
from tandem_engine.device.attention import (
    AttentionMetadata,
    Ints,
    advance_attention,
    build_attention_metadata,
)
from tandem_engine.device.host_memory import HostInts
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.dp_batches import DPBatches, DPPart, merge_logits

BLOCK_SIZE = 4
NUM_BLOCKS = 8
NUM_HOST_BLOCKS = 5
VOCAB_SIZE = 7

Row = tuple[int, int, int, int]
"""dp rank, tokens, tokens before them, yielding positions at most."""

rows_of = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 20), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)


def table_of(dp_rank: int, context: int, seed: int) -> list[int]:
    """Blocks of one dp rank, one more than the context fills where there is another."""
    blocks = np.random.default_rng(seed).permutation(NUM_BLOCKS) + dp_rank * NUM_BLOCKS
    table: list[int] = blocks[: context // BLOCK_SIZE + 1].tolist()
    return table


def batch_of(rows: Sequence[Row]) -> FlatBatch:
    rows = sorted(rows, key=lambda row: row[1] != 1)
    lengths = [length for _, length, _, _ in rows]
    ends = np.cumsum(lengths).tolist()
    yields = [
        token
        for (_, length, _, count), end in zip(rows, ends, strict=True)
        for token in range(end - min(count, length), end)
    ]
    return FlatBatch(
        token_ids=torch.arange(sum(lengths)) + 100,
        attention=build_attention_metadata(
            query_lens=lengths,
            context_lens=[before + length for _, length, before, _ in rows],
            block_tables=[
                table_of(dp_rank, before + length, seed)
                for seed, (dp_rank, length, before, _) in enumerate(rows)
            ],
            block_size=BLOCK_SIZE,
        ),
        yield_at=HostInts.of(yields, "cpu"),
        yielding=(),
        drafts={},
    )


def batches_of(dp: int) -> list[DPBatches]:
    return [
        DPBatches(dp=dp, dp_rank=dp_rank, num_blocks=NUM_BLOCKS, num_host_blocks=NUM_HOST_BLOCKS)
        for dp_rank in range(dp)
    ]


def rows_in(attention: AttentionMetadata, token_ids: list[int]) -> list[tuple[list[int], ...]]:
    """Tokens, positions and blocks of each row, and where its tokens go."""
    return [
        (
            token_ids[begin:end],
            attention.token_positions[begin:end].tolist(),
            attention.blocks[attention.first_block[at] : attention.first_block[at + 1]].tolist(),
            attention.token_blocks[begin:end].tolist(),
            attention.token_offsets[begin:end].tolist(),
        )
        for at, (begin, end) in enumerate(
            zip(attention.row_starts, attention.row_starts[1:], strict=False)
        )
    ]


def assert_is_parted(batch: FlatBatch, parts: Sequence[DPPart]) -> None:
    whole = rows_in(batch.attention, batch.token_ids.tolist())
    for dp_rank, part in enumerate(parts):
        first = dp_rank * NUM_BLOCKS
        own = rows_in(part.batch.attention, part.batch.token_ids.tolist())
        expected = [
            (tokens, positions, [b - first for b in blocks], [b - first for b in targets], offsets)
            for tokens, positions, blocks, targets, offsets in (whole[at] for at in part.rows)
        ]
        assert own == expected
        assert all(0 <= block < NUM_BLOCKS for block in part.batch.attention.blocks.tolist())
        yielding = part.batch.token_ids[part.batch.logits_at].tolist()
        assert yielding == batch.token_ids[batch.logits_at][part.yields[dp_rank]].tolist()
        assert part.is_empty == (not own)
    assert sorted(at for part in parts for at in part.rows.tolist()) == list(range(len(whole)))


@given(rows_of, st.integers(3, 4))
def test_every_row_is_in_the_part_of_its_blocks(rows: list[Row], dp: int) -> None:
    batch = batch_of(rows)

    assert_is_parted(batch, [batches.part(batch) for batches in batches_of(dp)])


@given(rows_of)
def test_logits_come_back_in_the_order_of_the_batch(rows: list[Row]) -> None:
    batch = batch_of(rows)
    parts = [batches.part(batch) for batches in batches_of(3)]

    def logits_of(of: FlatBatch) -> torch.Tensor:
        """Rows that say which token they are of."""
        return of.token_ids[of.logits_at].float()[:, None] + torch.arange(VOCAB_SIZE) / 10

    merged = merge_logits(
        [
            (part.yields[dp_rank], logits_of(part.batch))
            for dp_rank, part in enumerate(parts)
            if len(part.yields[dp_rank])
        ],
        VOCAB_SIZE,
    )

    assert merged.tolist() == logits_of(batch).tolist()
    assert merged.shape == (len(batch.yield_at), VOCAB_SIZE)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(1, 6),
)
def test_a_batch_that_goes_on_is_parted_as_one_that_is_new(
    rows: list[tuple[int, int]], steps: int
) -> None:
    batch = batch_of([(dp_rank, 1, before, 1) for dp_rank, before in rows])
    tables = [
        table_of(dp_rank, before + 1 + steps, seed) for seed, (dp_rank, before) in enumerate(rows)
    ]
    known = batches_of(3)
    for each in known:
        each.part(batch)
    for _ in range(steps):

        def blocks_of(at: Ints, numbers: Ints) -> list[int]:
            return [tables[row][number] for row, number in zip(at, numbers, strict=True)]

        attention = advance_attention(batch.attention, blocks_of)
        batch = replace(batch, attention=attention, token_ids=batch.token_ids + 100)
        advanced = [each.part(batch) for each in known]
        again = [each.part(batch) for each in batches_of(3)]

        assert_is_parted(batch, advanced)
        for one, other in zip(advanced, again, strict=True):
            for field in fields(AttentionMetadata):
                got = getattr(one.batch.attention, field.name)
                want = getattr(other.batch.attention, field.name)
                assert np.array_equal(got, want), field.name
                assert getattr(got, "dtype", None) == getattr(want, "dtype", None), field.name


def test_other_rows_of_the_same_lengths_are_not_taken_for_the_last_ones() -> None:
    (of_second,) = batches_of(2)[1:]
    assert of_second.part(batch_of([(0, 1, 3, 1), (1, 1, 4, 1)])).rows.tolist() == [1]
    assert of_second.part(batch_of([(1, 1, 4, 1), (0, 1, 5, 1)])).rows.tolist() == [0]


Copy = tuple[int, int, int]
"""dp rank, source and target in its own numbers."""

copies = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4)), max_size=6)


@given(copies, copies, copies)
def test_copies_are_made_by_the_dp_rank_of_their_blocks(
    outs: list[Copy], ins: list[Copy], copied: list[Copy]
) -> None:
    def counted(own: list[Copy], source: int, target: int) -> list[BlockCopy]:
        return [BlockCopy(of[0] * source + of[1], of[0] * target + of[2]) for of in own]

    step = Step(
        swapped_out=counted(outs, NUM_BLOCKS, NUM_HOST_BLOCKS),
        swapped_in=counted(ins, NUM_HOST_BLOCKS, NUM_BLOCKS),
        copied=counted(copied, NUM_BLOCKS, NUM_BLOCKS),
    )

    for dp_rank, batches in enumerate(batches_of(3)):
        own = batches.copies(step)
        for got, expected in (
            (own.swapped_out, outs),
            (own.swapped_in, ins),
            (own.copied, copied),
        ):
            assert list(got) == [one[1:] for one in expected if one[0] == dp_rank]


def test_no_copies_need_no_host_blocks() -> None:
    batches = DPBatches(dp=2, dp_rank=1, num_blocks=4)

    own = batches.copies(Step(copied=[BlockCopy(1, 2), BlockCopy(5, 6)]))

    assert list(own.copied) == [BlockCopy(1, 2)]
