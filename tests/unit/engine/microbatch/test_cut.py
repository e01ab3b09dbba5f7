"""The cut of a step: properties that hold for all, and the reasons for which steps stay whole."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.microbatch.cut import Cut, Half, RefusalReason, cut
from tandem_engine.microbatch.predict import part_seconds
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows, parted_rows
from tandem_engine.runner.rank_batches import prices_message, read_prices
from tests.unit.engine.microbatch.steps import BLOCK, TILE, prices, step, steps

EAGER = prices(margin=-9.0)
"""Cuts whatever can be, whether it pays or not."""


def found(rows: StepRows, at: CutPrices = EAGER) -> Cut:
    outcome = cut(rows, at)
    assert isinstance(outcome, Cut), outcome
    return outcome


def counts(half: Half) -> dict[int, int]:
    return dict(zip(half.rows.tolist(), half.counts.tolist(), strict=True))


@given(steps())
def test_both_halves_have_all_tokens_each_once_and_in_order(rows: StepRows) -> None:
    outcome = cut(rows, EAGER)
    if not isinstance(outcome, Cut):
        return

    first, second = outcome.first, outcome.second
    seen: dict[int, list[int]] = {row: [] for row in range(rows.num_rows)}
    for half in (first, second):
        assert half.num_tokens > 0
        assert half.rows.tolist() == sorted(half.rows.tolist())
        for row, start, count in zip(half.rows, half.firsts, half.counts, strict=True):
            seen[row] += range(start, start + count)
    assert seen == {row: list(range(new)) for row, new in enumerate(rows.query_lens)}


@given(steps())
def test_no_sequence_decodes_in_both_halves_and_one_chunk_at_most_is_in_both(
    rows: StepRows,
) -> None:
    outcome = cut(rows, EAGER)
    if not isinstance(outcome, Cut):
        return

    in_both = set(counts(outcome.first)) & set(counts(outcome.second))
    assert len(in_both) <= 1
    for row in in_both:
        assert row >= rows.num_decode_rows
        assert rows.can_be_parted[row]
        assert counts(outcome.first)[row] % TILE == 0
        assert counts(outcome.second)[row] > 1


@given(steps())
def test_no_row_of_the_first_half_reads_what_the_second_writes(rows: StepRows) -> None:
    outcome = cut(rows, EAGER)
    if not isinstance(outcome, Cut):
        return

    written = {
        (block, row)
        for row, blocks in blocks_of(rows, outcome.second, only_new=True).items()
        for block in blocks
    }
    for row, blocks in blocks_of(rows, outcome.first, only_new=False).items():
        assert not {block for block, writer in written if writer != row} & blocks


def blocks_of(rows: StepRows, half: Half, *, only_new: bool) -> dict[int, set[int]]:
    """The blocks that the tokens of each row of a half attend to, or are written to."""
    result = {}
    for row, first, count in zip(half.rows, half.firsts, half.counts, strict=True):
        begin = int(rows.begins[row] + first)
        start = begin // BLOCK if only_new else 0
        table = rows.blocks[rows.first_block[row] : rows.first_block[row + 1]]
        result[int(row)] = set(table[start : -(-(begin + int(count)) // BLOCK)].tolist())
    return result


@given(steps())
def test_halves_differ_by_no_more_than_what_cannot_be_parted(rows: StepRows) -> None:
    outcome = cut(rows, EAGER)
    if not isinstance(outcome, Cut):
        return

    def seconds(half: Half) -> float:
        firsts, taken = np.zeros_like(rows.query_lens), np.zeros_like(rows.query_lens)
        firsts[half.rows], taken[half.rows] = half.firsts, half.counts
        return float(part_seconds(rows, EAGER, firsts, taken).sum())

    each = part_seconds(rows, EAGER, np.zeros_like(rows.query_lens), rows.query_lens)
    tile = EAGER.token_s * (TILE + 2) + EAGER.pair_s * (TILE + 2) * rows.context_lens.max()
    solid = max([tile, *each[~rows.can_be_parted].tolist()])
    assert abs(seconds(outcome.first) - seconds(outcome.second)) <= 2 * solid + 1e-12


@given(steps())
def test_ranks_with_the_prices_of_a_message_cut_alike(rows: StepRows) -> None:
    here, there = cut(rows, prices()), cut(rows, CutPrices.decode(prices().encode()))

    if isinstance(here, Cut) and isinstance(there, Cut):
        assert counts(here.first) == counts(there.first)
        assert here.halves_s == there.halves_s
    else:
        assert here == there


def test_one_long_prompt_is_in_both_halves() -> None:
    outcome = found(step((0, 2048)))

    (early,), (late,) = outcome.first.counts.tolist(), outcome.second.counts.tolist()
    assert early + late == 2048
    assert early > late, "later tokens attend to more, so there are fewer of them"
    assert outcome.second.firsts.tolist() == [early]


def test_a_row_with_drafts_stays_whole() -> None:
    outcome = found(step((900, 4), (0, 512), whole=[0]))

    assert counts(outcome.first)[0] == 4
    assert cut(step((900, 300), whole=[0]), EAGER) is RefusalReason.TOO_SMALL


def test_decode_rows_are_shared_out_by_their_contexts() -> None:
    outcome = found(step((4000, 1), *((400, 1),) * 10), replace(EAGER, token_s=0.0))

    assert counts(outcome.first) == {0: 1}
    assert len(outcome.second.rows) == 10


@pytest.mark.parametrize(
    ("rows", "at", "reason"),
    [
        (step((0, 512)), None, "off"),
        (step((0, 512)), prices(prefills=False), "off"),
        (step((7, 1)), prices(), "too_small"),
        (step((0, 12)), prices(), "too_small"),
        (step((7, 1), (9, 1)), prices(decodes=False), "decode_only"),
        (step((7, 3), (9, 3), whole=[0, 1]), prices(decodes=False), "decode_only"),
        (step((0, 512)), prices(latency_s=0.0, byte_s=0.0), "no_gain"),
        (step((0, 512)), prices(byte_s=1.0), "no_gain"),
        (step((0, 512)), prices(base_s=1.0), "no_gain"),
    ],
)
def test_a_step_stays_whole_for_a_reason(rows: StepRows, at: CutPrices | None, reason: str) -> None:
    assert cut(rows, at) is RefusalReason(reason)


def test_a_reader_of_a_prefix_is_not_parted_from_its_writer() -> None:
    shared = [*range(16)]
    reader, writer = [*shared, 100, 101], [*shared, 200]
    # The decode row of the first half has the blocks that the second half fills.
    rows = step((256, 16), (0, 256), tables=[reader, writer], whole=[0, 1])

    assert cut(rows, EAGER) is RefusalReason.PREFIX_PARTED
    right = step((0, 256), (256, 16), tables=[writer, reader], whole=[0, 1])
    assert isinstance(cut(right, EAGER), Cut)


def test_a_cut_is_predicted_to_pay() -> None:
    outcome = found(step((0, 1024)), prices())

    assert outcome.halves_s < 0.8 * outcome.whole_s
    assert cut(step((0, 1024)), prices(margin=0.6)) is RefusalReason.NO_GAIN


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 3)).filter(lambda one: one[1] <= one[0]),
        min_size=1,
        max_size=8,
    )
)
def test_rows_can_be_parted_that_yield_at_their_end_or_not(rows: list[tuple[int, int]]) -> None:
    """Each row has a length, and yields at so many of its last tokens."""
    ends = np.cumsum([length for length, _ in rows])
    yields = [
        end - 1 - back
        for end, (_, number) in zip(ends, rows, strict=True)
        for back in reversed(range(number))
    ]

    parted = parted_rows(np.array([length for length, _ in rows]), np.array(yields, dtype=np.int64))

    assert parted.tolist() == [length > 1 and number <= 1 for length, number in rows]


def test_a_message_of_another_length_is_refused() -> None:
    message = prices().encode()

    assert CutPrices.decode(message) == prices()
    assert replace(prices(), tile=32) == CutPrices.decode(replace(prices(), tile=32).encode())
    with pytest.raises(ValueError, match="this is a bug"):
        CutPrices.decode(message[:-1])


def test_prices_and_their_end_are_messages_of_their_own() -> None:
    told = read_prices(prices_message(prices()))
    ended = read_prices(prices_message(None))

    assert told is not None
    assert told.prices == prices()
    assert ended is not None
    assert ended.prices is None
    assert read_prices(b"\x01\x00\x00\x00 a step") is None
