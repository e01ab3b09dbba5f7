"""The reference kernels against the formulas, written as plainly as can be."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device import attention, reference
from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.reference import ReferenceKernels

KERNELS = ReferenceKernels()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 48), (3, 4, 16), (1, 8)])
def test_rms_norm_is_x_over_its_root_mean_square(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], seed=1, dtype=dtype)

    normed = KERNELS.rms_norm(x, weight, 1e-6)

    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert normed.dtype == dtype
    torch.testing.assert_close(
        normed.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


def test_half_precision_norms_do_not_overflow() -> None:
    x = torch.full((2, 64), 1000.0, dtype=torch.float16)  # 1000² is more than float16 holds

    normed = KERNELS.rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-6)

    torch.testing.assert_close(normed, torch.ones(2, 64, dtype=torch.float16))


def test_add_rms_norm_returns_the_norm_of_the_sum_and_the_sum() -> None:
    x, residual, weight = random(5, 32), random(5, 32, seed=1), random(32, seed=2)

    normed, new_residual = KERNELS.add_rms_norm(x, residual, weight, 1e-5)

    torch.testing.assert_close(new_residual, random(5, 32) + random(5, 32, seed=1))
    torch.testing.assert_close(normed, KERNELS.rms_norm(new_residual, weight, 1e-5))
    torch.testing.assert_close(residual, random(5, 32, seed=1))


def test_rotary_turns_each_pair_of_the_two_halves() -> None:
    angles = random(4, 8).repeat(1, 2)  # [tokens, head_dim], both halves alike
    q, k = random(4, 3, 16, seed=1), random(4, 1, 16, seed=2)

    turned = KERNELS.rotary(q, k, angles.cos(), angles.sin())

    for before, after in zip((q, k), turned, strict=True):
        turn = torch.polar(torch.ones(4, 1, 8), angles[:, None, :8])
        expected = torch.complex(before[..., :8], before[..., 8:]) * turn
        torch.testing.assert_close(after, torch.cat((expected.real, expected.imag), -1))


def test_silu_mul_gates_the_second_half_by_the_first() -> None:
    gate, up = random(5, 12), random(5, 12, seed=1)

    result = KERNELS.silu_mul(torch.cat((gate, up), -1))

    torch.testing.assert_close(result, gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_multiplies_by_the_transpose(*, has_bias: bool) -> None:
    x, weight = random(5, 12), random(7, 12, seed=1)
    bias = random(7, seed=2) if has_bias else None

    result = KERNELS.linear(x, weight, bias)

    torch.testing.assert_close(result, x @ weight.T + (bias if bias is not None else 0))


def test_write_kv_puts_each_token_into_its_slot_and_touches_no_other() -> None:
    block_size, kv_heads, head_dim = 4, 2, 8
    metadata = build_attention_metadata(
        query_lens=[1, 3],
        context_lens=[6, 5],
        block_tables=[[2, 0], [3, 1, 4]],
        block_size=block_size,
    )
    k, v = random(4, kv_heads, head_dim), random(4, kv_heads, head_dim, seed=1)
    k_cache, v_cache = torch.zeros(2, 5, kv_heads, block_size, head_dim).unbind()

    KERNELS.write_kv(k, v, k_cache, v_cache, metadata)

    slots = [(0, 1), (3, 2), (3, 3), (1, 0)]  # positions 5, then 2, 3, 4
    assert metadata.positions.tolist() == [5, 2, 3, 4]
    assert (
        list(zip(metadata.slot_blocks.tolist(), metadata.slot_offsets.tolist(), strict=True))
        == slots
    )
    for token, (block, offset) in enumerate(slots):
        torch.testing.assert_close(k_cache[block, :, offset], k[token])
        torch.testing.assert_close(v_cache[block, :, offset], v[token])
    assert int(k_cache.count_nonzero()) == k.numel()


@dataclass(frozen=True)
class Batch:
    """Rows as (new tokens, tokens before them), and the shape of attention."""

    rows: tuple[tuple[int, int], ...]
    block_size: int = 4
    heads: int = 4
    kv_heads: int = 2
    dtype: torch.dtype = torch.float32
    seed: int = 0


def attend(batch: Batch) -> tuple[Tensor, Tensor]:
    """What the paged kernel gives, and plain attention of each row by itself."""
    head_dim, size = 8, batch.block_size
    generator = torch.Generator().manual_seed(batch.seed)
    need = [-(-(new + before) // size) for new, before in batch.rows]
    ids = torch.randperm(sum(need) + 3, generator=generator).tolist()
    tables = [[ids.pop() for _ in range(count)] for count in need]
    shape = (sum(need) + 3, batch.kv_heads, size, head_dim)
    # What is not of these rows is there, and large: whoever reads it does not go unnoticed.
    k_cache = torch.full(shape, 50.0, dtype=batch.dtype)
    v_cache = torch.full(shape, 50.0, dtype=batch.dtype)
    queries, expected = [], []
    for (new, before), table in zip(batch.rows, tables, strict=True):
        length = new + before
        q = torch.randn(new, batch.heads, head_dim, generator=generator).to(batch.dtype)
        k, v = torch.randn(2, length, batch.kv_heads, head_dim, generator=generator).to(batch.dtype)
        for position in range(length):
            k_cache[table[position // size], :, position % size] = k[position]
            v_cache[table[position // size], :, position % size] = v[position]
        queries.append(q)
        expected.append(plain_attention(q, k, v))
    metadata = build_attention_metadata(
        query_lens=[new for new, _ in batch.rows],
        context_lens=[new + before for new, before in batch.rows],
        block_tables=tables,
        block_size=size,
    )
    scale = head_dim**-0.5
    out = KERNELS.paged_attention(torch.cat(queries), k_cache, v_cache, metadata, scale)
    return out, torch.cat(expected)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax of all scores of one row, in double precision; [new, heads * head_dim]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))  # [heads, tokens, head_dim]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    before = k.shape[1] - q.shape[1]
    sees = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(before)
    mixed = scores.masked_fill(~sees, -math.inf).softmax(-1) @ v
    return mixed.transpose(0, 1).flatten(1)


def assert_attends(batch: Batch) -> None:
    out, expected = attend(batch)
    assert out.dtype == batch.dtype
    tolerance = TOLERANCE[batch.dtype]
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    size = draw(st.sampled_from([1, 2, 4, 16]))
    # Mostly lengths around the edge of a block, where an index is wrong first.
    edges = st.builds(
        lambda blocks, off: max(0, blocks * size + off), st.integers(0, 4), st.integers(-1, 1)
    )
    before = edges | st.integers(0, 40)
    decodes = [(1, count) for count in draw(st.lists(before, max_size=6))]
    new = edges.map(lambda count: max(1, count)) | st.integers(1, 20)
    chunks = draw(st.lists(st.tuples(new, before), min_size=0 if decodes else 1, max_size=3))
    heads, kv_heads = draw(st.sampled_from([(4, 4), (4, 2), (6, 2), (3, 1), (1, 1)]))
    return Batch(
        rows=(*decodes, *chunks),
        block_size=size,
        heads=heads,
        kv_heads=kv_heads,
        dtype=draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 100)),
    )


@settings(deadline=None, max_examples=100)
@given(batches())
@example(Batch(rows=((1, 0),)))
@example(Batch(rows=((1, 3), (1, 4), (1, 200))))
@example(Batch(rows=((7, 0), (1, 9), (5, 3))))  # a chunk of one token between others
def test_paged_attention_equals_plain_attention_of_each_row(batch: Batch) -> None:
    assert_attends(batch)


def test_a_long_chunk_attends_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TILE_TOKENS", 4)

    assert_attends(Batch(rows=((1, 7), (11, 0), (13, 5), (6, 9), (9, 1))))


def test_decodes_gather_long_contexts_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "GATHER_BYTES", 3 * 2 * 4 * 8 * 4)  # three units

    assert_attends(Batch(rows=((1, 30), (1, 2), (1, 17))))


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((1, 1, 8), 1000.0)
    cache = torch.full((2, 1, 4, 8), 1000.0)
    metadata = build_attention_metadata(
        query_lens=[1], context_lens=[6], block_tables=[[0, 1]], block_size=4
    )

    out = KERNELS.paged_attention(q, cache, cache, metadata, 1.0)

    torch.testing.assert_close(out, torch.full((1, 8), 1000.0))


def test_blocks_that_a_row_holds_in_advance_are_not_read() -> None:
    metadata = build_attention_metadata(
        query_lens=[1, 2], context_lens=[3, 4], block_tables=[[5, 9, 7], [2, 8]], block_size=4
    )

    assert metadata.decodes is not None
    assert metadata.decodes.blocks.tolist() == [5]
    assert [chunk.blocks.tolist() for chunk in metadata.chunks] == [[2]]


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "block_tables"),
    [
        pytest.param([1], [5], [[0]], id="too few blocks for the context"),
        pytest.param([3], [2], [[0]], id="more new tokens than context"),
        pytest.param([0], [2], [[0]], id="no new token"),
        pytest.param([1, 1], [2], [[0]], id="lists of different lengths"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    query_lens: list[int], context_lens: list[int], block_tables: list[list[int]]
) -> None:
    with pytest.raises(ValueError, match="this is a bug"):
        build_attention_metadata(
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=block_tables,
            block_size=4,
        )
