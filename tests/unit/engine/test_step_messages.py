"""Messages of steps, one by one: what is sent of tables and tokens, and what is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tandem_engine.api.step import BlockCopy, Step
from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.host_memory import HostInts
from tandem_engine.runner.batch import ALL_FED, Feed, FlatBatch
from tandem_engine.runner.rank_batches import RankBatches, columns_of
from tandem_engine.runner.rank_messages import BadMessage, StepDecoder, StepEncoder
from tests.unit.engine.test_rank_messages import CPU, HEADER_BYTES, assert_same


def batch_of(rows: dict[str, tuple[int, int, tuple[int, ...]]]) -> FlatBatch:
    """A batch of rows that yield: name → tokens, context, block table."""
    lengths = [length for length, _, _ in rows.values()]
    tables = [table for _, _, table in rows.values()]
    return FlatBatch(
        token_ids=torch.arange(sum(lengths)),
        attention=build_attention_metadata(
            query_lens=lengths,
            context_lens=[context for _, context, _ in rows.values()],
            block_tables=tables,
            block_size=4,
            device=CPU,
        ),
        yield_at=HostInts(np.cumsum(lengths) - 1, CPU),
        yielding=(),
        drafts={},
        sequence_ids=list(rows),
        block_tables=tables,
    )


class Pair:
    """An encoder and a rank."""

    def __init__(self) -> None:
        self.encoder = StepEncoder()
        self.rank = RankBatches(block_size=4, device=CPU)

    def hand(self, **rows: tuple[int, int, tuple[int, ...]]) -> list[int]:
        """Hand a batch on, compare, and return the numbers of the message behind its header."""
        batch = batch_of(rows)
        message = self.encoder.batch(columns_of(batch))
        got = self.rank.decode(message)
        assert isinstance(got, FlatBatch)
        assert_same(got.attention, batch.attention)
        assert got.token_ids.tolist() == batch.token_ids.tolist()
        assert got.yield_at.array.tolist() == batch.yield_at.array.tolist()
        numbers: list[int] = np.frombuffer(message, dtype=np.int32)[HEADER_BYTES // 4 :].tolist()
        return numbers


def test_of_a_table_what_is_new_is_sent() -> None:
    pair = Pair()

    # Table, tokens, context, yielding position; the table, its kept and new blocks; tokens.
    assert pair.hand(a=(1, 5, (50, 60))) == [0, 1, 5, 0, *(0, 0, 2, 50, 60), 0]
    assert pair.hand(a=(1, 6, (50, 60))) == [0]
    assert pair.hand(a=(1, 7, (50, 60, 70))) == [*(0, 2, 1, 70), 0]
    # A block of its own in place of a shared one: the rows do not simply go on.
    assert pair.hand(a=(1, 8, (50, 61, 70))) == [0, 1, 8, 0, *(0, 0, 3, 50, 61, 70), 0]
    # Blocks that were taken back, and others that came later.
    assert pair.hand(a=(1, 4, (50,))) == [0, 1, 4, 0, *(0, 1, 0), 0]
    assert pair.hand(a=(1, 5, (50, 80))) == [*(0, 1, 1, 80), 0]


def test_a_table_id_goes_to_the_next_sequence() -> None:
    pair = Pair()
    pair.hand(a=(1, 5, (50, 60)), b=(1, 9, (51, 61, 71)))
    pair.encoder.remove(["a", "unknown"])

    assert pair.hand(c=(1, 2, (62,)), b=(1, 10, (51, 61, 71)))[:2] == [0, 1]
    pair.encoder.remove(["b", "c"])
    assert pair.encoder.num_sequences == 0


def test_a_sequence_that_comes_again_does_not_go_on() -> None:
    pair = Pair()
    pair.hand(a=(1, 5, (50, 60)))
    pair.encoder.remove(["a"])

    pair.hand(a=(1, 6, (51, 61)))


def test_rows_that_go_on_elsewhere_are_sent_whole() -> None:
    pair = Pair()
    batches: list[dict[str, tuple[int, int, tuple[int, ...]]]] = [
        {"a": (1, 5, (50, 60)), "b": (1, 5, (51, 61))},
        {"b": (1, 6, (51, 61)), "a": (1, 6, (50, 60))},
        {"b": (1, 8, (51, 61)), "a": (1, 8, (50, 60))},
        {"a": (1, 9, (50, 60, 70)), "b": (2, 8, (51, 61))},
        {"a": (1, 10, (50, 60, 70)), "b": (1, 9, (51, 61, 71))},
    ]
    for rows in batches:
        # More than the tokens.
        assert len(pair.hand(**rows)) > 3


def test_tables_grow_to_any_size() -> None:
    pair = Pair()
    for number in range(200):
        pair.hand(**{f"r{number}": (1, 5, (number, 7))})
    table = tuple(range(3000))

    pair.hand(r7=(1, 12_000, table), r199=(1, 4, (199,)), r3=(1, 6, (3, 7)))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda message: message[:-4], "numbers"),
        (lambda message: message + bytes(4), "numbers"),
        (lambda message: message[:-1], "bytes"),
        (lambda message: message[:8], "numbers"),
        (lambda message: bytes([9]) + message[1:], "kind 9"),
        (lambda message: message[:4] + bytes([1]) + message[5:], "message 0 was due"),
    ],
)
def test_a_wrong_message_is_refused(spoil: Callable[[bytes], bytes], text: str) -> None:
    message = StepEncoder().batch(columns_of(batch_of({"a": (1, 5, (50, 60))})))

    with pytest.raises(BadMessage, match=text):
        StepDecoder().decode(spoil(message))


def test_a_message_that_was_missed_is_noticed() -> None:
    pair = Pair()
    pair.hand(a=(1, 5, (50, 60)))
    pair.encoder.copies(Step(copied=[BlockCopy(1, 2)]))

    with pytest.raises(BadMessage, match="Message 2 of rank 0 came where message 1 was due"):
        pair.hand(a=(1, 6, (50, 60)))


def test_tokens_that_devices_hand_on_cost_no_bytes() -> None:
    pair = Pair()
    rows = {f"r{number}": (1, 5, (number, 64 + number)) for number in range(64)}
    pair.hand(**rows)
    batch = batch_of({name: (1, 6, table) for name, (_, _, table) in rows.items()})
    batch.host_token_ids, batch.fed = batch.token_ids.numpy(), ALL_FED
    batch.feed_in(torch.arange(64))

    message = pair.encoder.batch(columns_of(batch, hands_tokens=True))

    # Their number.
    assert len(message) == HEADER_BYTES + 4
    got = pair.rank.decode(message)
    assert isinstance(got, FlatBatch)
    assert got.sampled is not None
    assert got.sampled.shape == (64,)
    got.feed_in(batch.sampled)
    assert got.token_ids.tolist() == [*range(64)]


def test_some_tokens_are_handed_on_beside_others() -> None:
    pair = Pair()
    batch = batch_of({"a": (1, 5, (50, 60)), "b": (3, 3, (51,)), "c": (1, 9, (52, 62, 72))})
    batch.token_ids = torch.tensor([0, 7, 8, 9, 0])
    batch.host_token_ids = batch.token_ids.numpy().copy()
    batch.fed = Feed(HostInts.of([0, 4], CPU), HostInts.of([2, 0], CPU))
    batch.feed_in(torch.tensor([11, 12, 13]))

    got = pair.rank.decode(pair.encoder.batch(columns_of(batch, hands_tokens=True)))

    assert isinstance(got, FlatBatch)
    assert got.token_ids.tolist() == [0, 7, 8, 9, 0]
    assert got.sampled is not None
    assert got.sampled.shape == (3,)
    got.feed_in(batch.sampled)
    assert got.token_ids.tolist() == batch.token_ids.tolist() == [13, 7, 8, 9, 11]


def test_tokens_of_a_step_that_failed_are_not_handed_on() -> None:
    pair = Pair()
    batch = batch_of({"a": (1, 5, (50, 60))})
    batch.host_token_ids, batch.fed = batch.token_ids.numpy(), ALL_FED
    batch.feed_in(None)

    got = pair.rank.decode(pair.encoder.batch(columns_of(batch, hands_tokens=True)))

    assert isinstance(got, FlatBatch)
    assert got.sampled is None
    assert got.fed is None


# Messages by hand
