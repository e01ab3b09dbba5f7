"""The halves of a flat batch: their layout, and that both together compute what the whole does."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata, lay_out_attention
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.host_memory import HostInts
from tandem_engine.microbatch.cut import Cut, cut
from tandem_engine.microbatch.rows import StepRows
from tandem_engine.model.decoder import Decoder, KVCache, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch
from tandem_engine.runner.micro_batches import MicroBatches, rows_of
from tests.unit.engine.microbatch.steps import BLOCK, prices, steps

EAGER = prices(margin=-9.0, tile=2)
NUM_TOKEN_IDS = 128


def batch_of(rows: StepRows, yields: list[int]) -> FlatBatch:
    """A flat batch of these rows, which yield at so many of their last tokens."""
    ends = np.cumsum(rows.query_lens)
    yield_at = [
        int(end) - 1 - back
        for end, number in zip(ends, yields, strict=True)
        for back in reversed(range(number))
    ]
    return FlatBatch(
        token_ids=torch.arange(rows.num_tokens) * 7 % NUM_TOKEN_IDS,
        attention=lay_out_attention(
            rows.query_lens, rows.context_lens, rows.blocks, block_size=BLOCK, device="cpu"
        ),
        yield_at=HostInts.of(yield_at, "cpu"),
        yielding=(),
        drafts=NO_DRAFTS,
    )


@st.composite
def batches(draw: st.DrawFn) -> FlatBatch:
    """Rows yield at their last token or not; those that stay whole yield at several."""
    rows = draw(steps())
    yields = [
        draw(st.integers(0, 1)) if parted or length == 1 else draw(st.integers(2, int(length)))
        for parted, length in zip(rows.can_be_parted, rows.query_lens, strict=True)
    ]
    return batch_of(rows, yields)


def halves_of(batch: FlatBatch) -> MicroBatches | None:
    outcome = cut(rows_of(batch), EAGER)
    return MicroBatches.of(batch, outcome) if isinstance(outcome, Cut) else None


@given(batches())
def test_each_token_has_its_position_and_place_in_one_of_the_halves(batch: FlatBatch) -> None:
    halves = halves_of(batch)
    if halves is None:
        return

    assert sorted([*placed(halves.first), *placed(halves.second)]) == sorted(placed(batch))
    for half in (halves.first, halves.second):
        attention = half.attention
        queries = np.diff(attention.row_starts)
        assert attention.num_decode_rows == int((queries == 1).sum())
        assert (queries >= 1).all()
        assert len(half.token_ids) == attention.num_tokens == int(queries.sum())
        assert (attention.context_lens >= queries).all()


def placed(batch: FlatBatch) -> list[tuple[int, ...]]:
    """Token id, position, block and offset of each token."""
    found = batch.attention
    columns = (batch.token_ids.tolist(), found.token_positions, found.token_blocks)
    return [tuple(map(int, one)) for one in zip(*columns, found.token_offsets, strict=True)]


@given(batches())
def test_rows_of_a_half_have_the_blocks_of_their_contexts(batch: FlatBatch) -> None:
    halves = halves_of(batch)
    if halves is None:
        return

    whole = tables(batch.attention)
    for half in (halves.first, halves.second):
        for table in tables(half.attention):
            assert any(one[: len(table)] == table for one in whole)


def tables(attention: AttentionMetadata) -> list[list[int]]:
    return [attention.blocks[start:end].tolist() for start, end in pairwise(attention.first_block)]


@given(batches())
def test_logits_come_back_in_the_order_of_the_whole(batch: FlatBatch) -> None:
    halves = halves_of(batch)
    if halves is None:
        return

    def told(half: FlatBatch) -> Tensor:
        """Instead of logits, the place in the cache of the token that yields."""
        attention, at = half.attention, half.yield_at.array
        where = attention.token_blocks[at] * BLOCK + attention.token_offsets[at]
        return torch.from_numpy(where)[:, None]

    assert halves.merge(told(halves.first), told(halves.second)).equal(told(batch))


@pytest.fixture(scope="module")
def decoder(make_checkpoint: Callable[..., Path]) -> Decoder:
    folder = make_checkpoint("Qwen3ForCausalLM", max_position_embeddings=1024)
    return load_decoder(folder, runtime=CpuRuntime(memory_bytes=1 << 30))


def cache_of(decoder: Decoder, batch: FlatBatch) -> KVCache:
    """A cache that tokens before the step have filled, always with the same."""
    num_blocks = int(batch.attention.blocks.max()) + 1
    cache = allocate_kv_cache(
        decoder.cache_layout(BLOCK, None), num_blocks=num_blocks, device="cpu"
    )
    cache.blocks.normal_(generator=torch.Generator().manual_seed(0))
    return cache


def test_halves_one_after_the_other_compute_what_the_whole_does(decoder: Decoder) -> None:
    @settings(max_examples=settings().max_examples // 2)
    @given(batches())
    def check(batch: FlatBatch) -> None:
        halves = halves_of(batch)
        if halves is None:
            return
        whole_cache, cut_cache = cache_of(decoder, batch), cache_of(decoder, batch)

        def forward(part: FlatBatch, cache: KVCache) -> Tensor:
            return decoder.forward(
                part.token_ids, cache, part.attention, logits_rows=part.logits_at
            )

        with torch.inference_mode():
            whole = forward(batch, whole_cache)
            first = forward(halves.first, cut_cache)
            merged = halves.merge(first, forward(halves.second, cut_cache))
        torch.testing.assert_close(merged, whole, atol=1e-4, rtol=1e-4)

    check()
